#![no_main]

#[path = "../targets.rs"]
mod targets;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::results(&MEMORY, input));
