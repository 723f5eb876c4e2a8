#!/usr/bin/env bash
# Installs lavapipe, Mesa's software Vulkan, and the loader that ggml's Vulkan backend needs, and sees that they are
# there. Whether ggml finds the device is for who asks for it by name.
set -euo pipefail

icd=/usr/share/vulkan/icd.d
if ! ldconfig -p | grep -q libvulkan.so.1 || ! ls $icd/lvp_icd*.json >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers >/dev/null
fi
ls $icd/lvp_icd*.json >/dev/null
