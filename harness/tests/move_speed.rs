//! What saving and loading a KV cache costs beside plain copies of the same bytes. Numbers for people, judged by nobody:
//!
//! ```console
//! $ CONFORM_GGML_DIR=target/ggml/v0.5.0 cargo test --test move_speed -- --ignored --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use conform_cases::formats::ElemType;
use conform_cases::plan::{Part, Place, Plan, Role, Step, Tensor};
use conform_cases::stream::Stream;
use conform_harness::backend::cpu::CpuDriver;
use conform_harness::backend::cuda::Cuda;
use conform_harness::backend::ggml::GgmlDriver;
use conform_harness::backend::opencl::OpenCl;
use conform_harness::backend::{Device, Driver, Probe};

/// Tensors of a cache, and bytes of each: 512 MiB together.
const LAYERS: usize = 8;
const BYTES: usize = 64 << 20;

/// What a cache that was written and freed for a while looks like: runs of up to so many cells, with gaps between.
fn cells(rows: usize, longest: usize) -> Vec<(usize, usize)> {
    let (stream, mut at, mut runs) = (Stream::new(1, 75), 0, Vec::new());
    for i in 0.. {
        let run = 1 + stream.below(2 * i, longest as u64) as usize;
        if at + run > rows {
            break;
        }
        runs.push((at, run));
        at += run + 1 + stream.below(2 * i + 1, 3) as usize;
    }
    runs
}

/// One transfer for each run of cells: rows one after the other.
fn rows(row: usize, longest: usize) -> (Vec<Part>, usize) {
    let (mut parts, mut blob) = (Vec::new(), 0);
    for tensor in 0..LAYERS {
        for (cell, run) in cells(BYTES / row, longest) {
            let size = run * row;
            parts.push(Part { tensor, here: Place::at(cell * row), there: Place::at(blob), size, count: 1 });
            blob += size;
        }
    }
    (parts, blob)
}

/// The same with V transposed, of so many rows of all cells, in f16: one rectangle for each run.
fn transposed(embedding: usize, longest: usize) -> (Vec<Part>, usize) {
    let (mut parts, mut blob) = (Vec::new(), 0);
    let kv_size = BYTES / embedding / 2;
    let runs = cells(kv_size, longest);
    let all: usize = runs.iter().map(|(_, run)| run).sum();
    for tensor in 0..LAYERS {
        let mut at = blob;
        for (cell, run) in &runs {
            let here = Place { at: cell * 2, stride: kv_size * 2 };
            parts.push(Part { tensor, here, there: Place { at, stride: all * 2 }, size: run * 2, count: embedding });
            at += run * 2;
        }
        blob += embedding * all * 2;
    }
    (parts, blob)
}

fn best(mut work: impl FnMut()) -> Duration {
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..5).map(|_| time(&mut work)).min().unwrap()
}

fn measure(device: &mut dyn Device) {
    let key = device.info().key.clone();
    let tensors = (0..LAYERS).map(|_| Tensor::whole("k", ElemType::F16, [BYTES / 2, 1, 1, 1], Role::Output)).collect();
    // A step says what kind of plan it is.
    let steps = vec![Step::Fill { tensor: 0, byte: 1 }];
    device.load(&Plan { case: String::new(), tensors, steps, ..Plan::default() }).unwrap();
    let mut blob = vec![1u8; LAYERS * BYTES];
    for (i, bytes) in blob.chunks(BYTES).enumerate() {
        device.write(i, 0, bytes).unwrap();
    }
    let shapes = [512, 1024, 4096].into_iter().flat_map(|row| [1, 15, 63].map(|longest| (row, longest, false)));
    let shapes = shapes.chain([(1024, 63, true), (1024, 511, true)]);
    for (row, longest, is_transposed) in shapes {
        let (parts, bytes) = if is_transposed { transposed(row, longest) } else { rows(row, longest) };
        let blob = &mut blob[..bytes];
        let each = bytes / LAYERS;
        let write = best(|| blob.chunks(each).enumerate().for_each(|(i, b)| device.write(i, 0, b).unwrap()));
        let upload = best(|| device.upload(blob, &parts).unwrap());
        let read = best(|| blob.chunks_mut(each).enumerate().for_each(|(i, b)| device.read(i, 0, b).unwrap()));
        let fetch = best(|| device.fetch(blob, &parts).unwrap());
        let (load, save) = (upload.as_secs_f64() / write.as_secs_f64(), fetch.as_secs_f64() / read.as_secs_f64());
        let kind = if is_transposed { "elements of transposed" } else { "rows" };
        println!(
            "{key}: {} MiB, {row} B {kind}, {} transfers: load {upload:.0?} is {load:.2} x {write:.0?}, save \
             {fetch:.0?} is {save:.2} x {read:.0?}",
            bytes >> 20,
            parts.len()
        );
    }
    device.free();
}

#[test]
#[ignore = "takes minutes and 2 GiB"]
fn a_cache_beside_plain_copies() {
    let mut drivers: Vec<&dyn Driver> = vec![&CpuDriver, &OpenCl, &Cuda];
    if GgmlDriver::is_wanted() {
        drivers.push(&GgmlDriver);
    }
    let wanted = std::env::var("CONFORM_MOVES").unwrap_or_default();
    for driver in drivers {
        let (Probe::Found(devices) | Probe::FoundPart { devices, .. }) = driver.probe() else { continue };
        for info in devices.into_iter().filter(|i| i.key.contains(&wanted) && !i.key.contains('+')) {
            measure(&mut *driver.open(&info.key).unwrap());
        }
    }
}
