//! `conform devices --probe`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::conform::{Ended, conform, list};

const TYPES: usize = 11;
const TOKENS: usize = 6;

/// What each device shows: weight type, tokens, standing.
fn probed(ended: &Ended) -> BTreeMap<String, Vec<Value>> {
    let json = ended.json();
    let devices = json["probed"].as_array().unwrap().iter();
    devices.map(|d| (d["device"].as_str().unwrap().to_owned(), d["shown"].as_array().unwrap().clone())).collect()
}

fn standing<'a>(shown: &'a [Value], standing: &str) -> Vec<&'a str> {
    shown.iter().filter(|s| s["standing"] == standing).map(|s| s["w"].as_str().unwrap()).collect()
}

#[test]
fn own_devices_are_as_declared() {
    let ended = conform(["devices", "--probe", "--json"]).opencl().end().with(0);
    let probed = probed(&ended);
    assert!(probed.contains_key("cpu"), "{ended:#?}");
    for (device, shown) in probed {
        assert_eq!(standing(&shown, "as_declared").len(), TYPES * TOKENS, "{device}: {shown:#?}");
    }
}

#[test]
fn lost_bits_contradict_the_table() {
    let probe = ["devices", "--probe", "--device", "fake-0"];
    let ended = conform(probe.into_iter().chain(["--json"])).fake("scale=1.001@w=q8_0").end().with(1);
    let shown = &probed(&ended)["fake-0"];
    assert_eq!(standing(shown, "contradicts"), vec!["q8_0"; TOKENS]);
    assert_eq!(standing(shown, "as_declared").len(), (TYPES - 1) * TOKENS);
    let text = conform(probe).fake("scale=1.001@w=q8_0").end().with(1).stdout;
    let line = text.lines().find(|l| l.contains("q8_0")).unwrap();
    assert!(line.contains("n=1,2,4,8,9,33  sums of fewer than 11 bits"), "{line}");
    assert!(line.ends_with("contradicts: declared 24-bit sums, f32 activations"), "{line}");
}

/// Only wrong bits say something about arithmetic.
#[test]
fn what_a_device_does_not_do_is_no_arithmetic() {
    let probe = |rules| conform(["devices", "--probe", "--device", "fake-0", "--json"]).fake(rules).end();
    assert_eq!(probed(&probe("unsupported@w=mxfp4").with(0))["fake-0"].len(), (TYPES - 1) * TOKENS);
    assert_eq!(probed(&probe("unsupported").with(1))["fake-0"].len(), 0);
    let crashed = probe("crash@w=f16,x=f32,e=4,u=2,m=64,n=9,").with(1);
    let shown = &probed(&crashed)["fake-0"];
    assert_eq!(standing(shown, "unseen"), ["f16"]);
    let why = shown.iter().find_map(|s| s["why"].as_str()).unwrap();
    assert!(why.contains("w=f16") && why.contains("SIGABRT"), "{why}");
    let lost = probe("refuse-open").with(1).json();
    assert!(lost["probed"][0]["lost"].as_str().unwrap().contains("told to refuse"), "{lost}");
}

#[test]
fn only_a_probe_chooses_devices() {
    let ended = conform(["devices", "--device", "cpu"]).end().with(2);
    assert!(ended.stderr.contains("--probe"), "{ended:#?}");
    let ended = conform(["devices", "--probe", "--device", "gpu*"]).end().with(2);
    assert!(ended.stderr.contains("no device matches 'gpu*'"), "{ended:#?}");
}

/// A probe's case is a case: it runs and is judged like any other where somebody names it.
#[test]
fn probing_cases_are_ordinary() {
    let id = "mul_mat_id/w=q4_K,x=f32,e=4,u=2,m=64,n=2,k=512/route=shuffle,data=w2049/v1-1";
    let replay = conform(["replay", id, "--device", "cpu", "--json"]).end().with(0);
    assert_eq!(replay.json()[0]["metrics"]["exact"], 64 * 2 * 2);
    // None of them is drawn.
    let drawn = list(["--profile", "random", "--seed", "3", "--cases", "3000"]);
    assert!(drawn.iter().all(|id| !id.contains("data=act") && !id.contains("data=w2049")));
}
