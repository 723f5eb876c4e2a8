#!/usr/bin/env bash
# Installs the OpenCL implementations that every kernel is tested on, and sees that they are there: PoCL, rusticl of
# Mesa, which has devices only where RUSTICL_ENABLE names a driver, and Oclgrind, which is no device of the machine's
# unless OCL_ICD_VENDORS names it.
set -euo pipefail

vendors=/etc/OpenCL/vendors
oclgrind=/usr/lib/oclgrind/liboclgrind-rt-icd.so
if ! ldconfig -p | grep -q libOpenCL.so.1 || ! ls $vendors/pocl*.icd $vendors/rusticl*.icd $oclgrind >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends ocl-icd-libopencl1 pocl-opencl-icd mesa-opencl-icd oclgrind \
        >/dev/null
fi
ls $vendors/pocl*.icd $vendors/rusticl*.icd $oclgrind >/dev/null
