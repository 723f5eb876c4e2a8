//! Real builds, in workers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use conform_cases::case::Case;
use conform_cases::formats::{ElemType, read_f32};
use conform_cases::plan::{Order, Plan, Role, Step, Tensor};
use conform_harness::backend::ggml::{Build, DIR, GgmlDriver};
use conform_harness::backend::{Device, Driver, Probe};
use conform_harness::discover::{Found, Source, discover};
use conform_harness::result::Verdict;
use conform_harness::run::{Event, Settings, run};
use conform_harness::worker::protocol::Outcome;
use conform_harness::worker::{Attempt, Launch, Limits, Supervisor};

use super::plans::{Small, WHOLE};

/// Software Vulkan compiles for long, on machines that are busy with the other tests.
const PATIENT: Duration = Duration::from_secs(300);

pub(crate) fn builds() -> Vec<Build> {
    if let Ok(listed) = std::env::var("CONFORM_GGML") {
        return listed.split(':').filter(|b| !b.is_empty()).map(|b| b.parse().unwrap()).collect();
    }
    let target = Path::new(env!("CARGO_BIN_EXE_conform")).ancestors().nth(2).unwrap();
    let Ok(entries) = std::fs::read_dir(target.join("ggml")) else {
        eprintln!("no ggml build here: ci/fetch-ggml.sh fetches some");
        return Vec::new();
    };
    let mut dirs: Vec<_> = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    dirs.retain(|d| !d.file_name().unwrap().to_string_lossy().starts_with('.'));
    dirs.sort();
    dirs.into_iter().map(Build::in_dir).collect()
}

fn devices(build: &Build) -> Vec<Found> {
    let launch = |backend: &str| Launch::conform(env!("CARGO_BIN_EXE_conform"), backend);
    let discovery = discover(&[Source::ggml(build, launch)]);
    assert!(discovery.refused.is_empty(), "{:?}", discovery.refused);
    assert!(discovery.found.iter().all(|f| f.info.key.starts_with(&build.prefix())));
    discovery.found
}

fn supervisor(found: &Found) -> Supervisor {
    Supervisor::new(found.launch.clone(), &found.info.key, Limits { open: PATIENT, ..Limits::default() })
}

/// Runs a plan; true if it was computed and right, false if the device does not do it.
fn is_right(supervisor: &mut Supervisor, key: &str, small: &mut Small) -> bool {
    match supervisor.attempt(&mut small.job(PATIENT)) {
        Attempt::Ran { outcome: Outcome::Done {}, .. } => {
            small.check(key);
            true
        }
        Attempt::Ran { outcome: Outcome::Unsupported { why }, .. } => {
            assert!(!why.contains('\n') && !why.is_empty());
            false
        }
        other => panic!("{key}: {} gave {other:?}", small.plan.case),
    }
}

#[test]
fn every_cpu_device_computes() {
    for build in builds() {
        let mut keys = BTreeSet::new();
        for found in devices(&build).iter().filter(|f| f.info.properties["registry"] == "CPU") {
            let key = &found.info.key;
            let is_packed = key.contains('+');
            assert_eq!(found.info.capabilities.readable_inputs, !is_packed);
            assert!(keys.insert(key.clone()), "{key} twice");
            let mut worker = supervisor(found);
            let mut right = 0;
            for ty in ElemType::WEIGHTS {
                for b in [1, 2] {
                    let done = is_right(&mut worker, key, &mut Small::product(ty, b, [WHOLE; 3]));
                    // Old builds have no mxfp4.
                    assert!(done || is_packed || ty == ElemType::Mxfp4, "{key} does no {ty}");
                    right += usize::from(done);
                }
            }
            for order in [Order::Asc, Order::Desc] {
                assert_eq!(is_right(&mut worker, key, &mut Small::sort(order)), !is_packed, "{key} argsort");
            }
            eprintln!("{key}: {right} products");
        }
        assert!(!keys.is_empty(), "{build} has no CPU device");
    }
}

/// A backend that ends the process while it is asked for devices takes no others along.
#[test]
fn a_backend_that_dies_while_it_is_asked_is_a_reason() {
    let Some(build) = builds().pop() else { return };
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&build.dir).unwrap().map(|e| e.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let is_wanted = ["libggml.", "libggml-base", "libggml-cpu-x64"].iter().any(|start| name.starts_with(start));
        if is_wanted && file.is_file() {
            std::fs::copy(&file, folder.path().join(name)).unwrap();
        }
    }
    // Another backend's symbols are not asked for: it dies before.
    let source = folder.path().join("dies.c");
    std::fs::write(
        &source,
        "#include <stdio.h>\n#include <stdlib.h>\n\
        void *ggml_backend_init(void) { fputs(\"what(): no driver\\n\", stderr); abort(); }\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join("libggml-vulkan.so")).arg(source);
    assert!(cc.status().unwrap().success());
    let launch = |backend: &str| Launch::conform(env!("CARGO_BIN_EXE_conform"), backend);
    let discovery = discover(&[Source::ggml(&Build::in_dir(folder.path()), launch)]);
    assert!(discovery.found.iter().any(|f| f.info.key.contains("-cpu-x64")), "{discovery:?}");
    let [missing] = &discovery.missing[..] else { panic!("{discovery:?}") };
    for part in ["SIGABRT", "what(): no driver", "only a part of it was asked"] {
        assert!(missing.why.contains(part), "{}", missing.why);
    }
    // A worker of what was found doesn't load the other either.
    let found = discovery.found.iter().find(|f| f.info.key.ends_with("-cpu-x64")).unwrap();
    assert!(is_right(&mut supervisor(found), &found.info.key, &mut Small::sort(Order::Asc)));
}

#[test]
fn views_are_views() {
    for build in builds() {
        let found = devices(&build);
        let Some(found) =
            found.iter().find(|f| f.info.key.ends_with("-cpu-x64") || f.info.key.ends_with("-cpu-haswell"))
        else {
            continue;
        };
        let mut worker = supervisor(found);
        for ty in ElemType::WEIGHTS.into_iter().filter(|ty| *ty != ElemType::Mxfp4) {
            for margins in [
                [[true, true, true, false], WHOLE, WHOLE],
                [WHOLE, [true, true, true, false], WHOLE],
                [WHOLE, WHOLE, [true, true, false, false]],
            ] {
                assert!(
                    is_right(&mut worker, &found.info.key, &mut Small::product(ty, 2, margins)),
                    "{ty} {margins:?}"
                );
            }
        }
    }
}

/// Weights that only the build decodes are judged by what it decodes, views included.
#[test]
fn what_a_build_decodes_is_what_its_products_are_judged_by() {
    for build in builds() {
        let found = devices(&build);
        let usual = |key: &str| key.ends_with("-cpu-x64") || key.ends_with("-cpu-haswell");
        let Some(found) = found.into_iter().find(|f| usual(&f.info.key)) else { continue };
        let cases = ElemType::DECODED_BY_BUILD.into_iter().flat_map(|w| {
            let k = 3 * w.block_len();
            ["", ",wv=kme"].map(|view| {
                let id = format!("mul_mat_id/w={w},x=f32,e=3,u=2,m=8,n=2,k={k}{view}/route=shuffle,data=normal/v1-1");
                id.parse::<Case>().unwrap()
            })
        });
        let (send, events) = mpsc::channel();
        run(&Settings { jobs: 1, ..Settings::default() }, vec![found], cases, &send).unwrap();
        drop(send);
        let mut judged = 0;
        for event in events {
            let Event::Result(result) = event else { continue };
            match result.verdict {
                Verdict::Pass => {
                    assert!(result.decoded_by_build, "{}", result.case);
                    judged += 1;
                }
                Verdict::Unsupported => {
                    let why = result.why.unwrap();
                    assert!(why.starts_with("this build has no type "), "{}: {why}", result.case);
                }
                _ => panic!("{result:?}"),
            }
        }
        // The oldest have 14 of the 17 types.
        assert!(judged >= 28, "{build}: {judged}");
    }
}

/// One type is enough to see that bytes go where they should: each further one is seconds of compiling.
#[test]
fn other_backends_compute() {
    for build in builds() {
        for found in devices(&build).iter().filter(|f| f.info.properties["registry"] != "CPU") {
            let mut worker = supervisor(found);
            let right = is_right(&mut worker, &found.info.key, &mut Small::product(ElemType::F32, 2, [WHOLE; 3]));
            eprintln!("{}: {}", found.info.key, if right { "right" } else { "unsupported" });
        }
    }
}

/// A folder with libraries of two builds is refused, whatever else is in it.
#[test]
fn a_mixture_of_builds_is_refused() {
    let modules = |build: &Build| {
        let files = std::fs::read_dir(&build.dir).unwrap().map(|e| e.unwrap().path());
        files.filter(|p| p.to_string_lossy().contains("libggml-cpu-")).collect::<Vec<_>>()
    };
    let builds: Vec<Build> = builds().into_iter().filter(|b| !modules(b).is_empty()).collect();
    for pair in builds.windows(2) {
        let dir = tempfile::tempdir().unwrap();
        let copy = |from: &Path, name: &str| std::fs::copy(from, dir.path().join(name)).unwrap();
        for file in std::fs::read_dir(&pair[0].dir).unwrap().map(|e| e.unwrap().path()) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if !name.contains("vulkan.so") && name.contains("ggml") {
                copy(&file, &name);
            }
        }
        copy(&modules(&pair[1])[0], "libggml-cpu-zzz.so");
        let launch = |backend: &str| Launch::conform(env!("CARGO_BIN_EXE_conform"), backend);
        let discovery = discover(&[Source::ggml(&Build::in_dir(dir.path()), launch)]);
        // Neighbours may fit together: then nothing is wrong.
        for refused in &discovery.refused {
            assert!(refused.why.contains("libggml-cpu-zzz.so: "), "{}", refused.why);
            eprintln!("{} with a module of {}: {}", pair[0].name, pair[1].name, refused.why);
        }
    }
}

/// Repack kernels check ids, with an assertion that ends the process.
#[test]
fn an_assertion_is_a_crash_of_that_case_alone() {
    for build in builds() {
        let packed = devices(&build).into_iter().filter(|f| f.info.key.contains("+repack"));
        let mut seen = false;
        for found in packed {
            let key = &found.info.key;
            let mut worker = supervisor(&found);
            let good = || Small::product(ElemType::Q4_0, 1, [WHOLE; 3]);
            if seen || !is_right(&mut worker, key, &mut good()) {
                continue;
            }
            let mut bad = good();
            bad.set_ids(3, [0, 1000]);
            let Attempt::Died(death) = worker.attempt(&mut bad.job(PATIENT)) else { panic!("{key} lives") };
            assert!(death.log.contains("GGML_ASSERT"), "{key}: {death:?}");
            assert!(is_right(&mut worker, key, &mut good()), "{key}");
            eprintln!("{key}: {}", death.cause);
            seen = true;
        }
    }
}

/// A driver lives in a worker, and this one reads its environment: so the test runs itself again.
#[test]
fn steps_run_together_and_one_by_one() {
    for build in builds() {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "builds::steps_in_process", "--ignored", "--nocapture"]).env(DIR, &build.dir);
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{build}: {output:?}");
    }
}

#[test]
#[ignore = "run by steps_run_together_and_one_by_one"]
fn steps_in_process() {
    let (Probe::Found(found) | Probe::FoundPart { devices: found, .. }) = GgmlDriver.probe() else { panic!() };
    let key = found.into_iter().map(|i| i.key).find(|k| k.contains("-cpu") && !k.contains('+')).unwrap();
    let mut device = GgmlDriver.open(&key).unwrap();
    assert!(GgmlDriver.open("ggml-x-cpu").is_err());

    // The order of the keys is the order in which each token uses the experts.
    let (k, m, experts, n) = (8, 3, 4, 2);
    let plan = Plan {
        case: "two steps".to_owned(),
        tensors: vec![
            Tensor::whole("keys", ElemType::F32, [experts, n, 1, 1], Role::Input),
            Tensor::whole("ids", ElemType::I32, [experts, n, 1, 1], Role::Output),
            Tensor::whole("weights", ElemType::F32, [k, m, experts, 1], Role::Weights),
            Tensor::whole("x", ElemType::F32, [k, 1, n, 1], Role::Input),
            Tensor::whole("out", ElemType::F32, [m, experts, n, 1], Role::Output),
        ],
        steps: vec![
            Step::Argsort { x: 0, out: 1, order: Order::Asc },
            Step::MulMatId { weights: 2, x: 3, ids: 1, out: 4 },
        ],
        ..Plan::default()
    };
    device.load(&plan).unwrap();
    let floats = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let ones = floats(&mut std::iter::repeat_n(1.0, k * n));
    let weights = floats(&mut (0..k * m * experts).map(|i| (i / (k * m)) as f32));
    device.write(2, 0, &weights).unwrap();
    device.write(3, 0, &ones).unwrap();
    let mut run = |keys: [f32; 8], ranges: &[(usize, usize)]| {
        device.write(0, 0, &floats(&mut keys.into_iter())).unwrap();
        device.write(4, 0, &vec![0xff; 4 * m * experts * n]).unwrap();
        for (from, to) in ranges {
            device.run(*from..*to).unwrap();
        }
        let mut out = vec![0; 4 * m * experts * n];
        device.read(4, 0, &mut out).unwrap();
        read_f32(&out).step_by(m).map(|y| y / k as f32).collect::<Vec<_>>()
    };
    let (up, down) = ([0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(run(up, &[(0, 2)]), up);
    assert_eq!(run(down, &[(0, 1), (1, 2)]), down);
    // The second step alone uses what the first one left.
    assert_eq!(run(up, &[(1, 2)]), down);
    assert_eq!(run(up, &[(0, 1), (1, 2)]), up);
    refuse_nonsense(&mut *device, &plan);
}

fn refuse_nonsense(device: &mut dyn Device, plan: &Plan) {
    let mut buffer = [0; 8];
    assert!(device.read(0, 32, &mut buffer).unwrap_err().0.contains("8 bytes at 32, but it has 32"));
    assert!(device.write(9, 0, &buffer).unwrap_err().0.contains("no tensor 9"));
    assert!(device.run(1..3).unwrap_err().0.contains("steps 1..3 of a plan of 2"));
    let refused = |change: &dyn Fn(&mut Plan), device: &mut dyn Device| {
        let mut plan = plan.clone();
        change(&mut plan);
        device.load(&plan).unwrap_err().to_string()
    };
    assert!(refused(&|p| p.steps.reverse(), device).contains("step 0 reads 'ids' before it is written"));
    assert!(refused(&|p| p.tensors[2].shape[0] = 4, device).contains("step 1 do not fit"));
    assert!(refused(&|p| p.tensors[1].ty = ElemType::U16, device).contains("no type u16"));
    let view = |p: &mut Plan| p.tensors[4] = p.tensors[4].clone().with_margins([true, false, false, false]);
    assert!(refused(&view, device).contains("'out' is a view"));
    assert!(device.run(0..1).unwrap_err().0.contains("no plan"));
    device.free();
}
