#!/usr/bin/env bash
# Installs PoCL, the OpenCL implementation that every kernel is tested on, and sees that it is there.
set -euo pipefail

if ! ldconfig -p | grep -q libOpenCL.so.1 || ! ls /etc/OpenCL/vendors/pocl*.icd >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends ocl-icd-libopencl1 pocl-opencl-icd >/dev/null
fi
ls /etc/OpenCL/vendors/pocl*.icd >/dev/null
