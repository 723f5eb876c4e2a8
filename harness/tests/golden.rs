//! What people read, as snapshots in `golden/`: help texts and a failure.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn stdout(args: &[&str], fake: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.args(args).env_remove("CONFORM_FAKE");
    if let Some(rules) = fake {
        command.env("CONFORM_FAKE", rules);
    }
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn help() {
    let commands = ["", "devices", "list", "show", "run", "replay", "mutants"];
    let texts = commands.map(|c| {
        let args: Vec<&str> = [c, "--help"].into_iter().filter(|a| !a.is_empty()).collect();
        format!("$ conform {}\n{}", args.join(" "), stdout(&args, None))
    });
    snapshot("help", &texts.join("\n"));
}

#[test]
fn failure_message() {
    let case = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=256/route=skew,data=normal/v1-9f3c";
    let replay = |rules| stdout(&["replay", case, "--device", "fake-0"], Some(rules));
    let texts = [replay("scale=1.02"), replay("zero-one"), replay("swap-tokens"), replay("error")];
    snapshot("failure_message", &texts.join("\n"));
}

#[test]
fn shown_case() {
    let case = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=256,t=8,wv=k/route=skew,data=normal/v1-9f3c";
    snapshot("shown_case", &stdout(&["show", case], None));
}

#[test]
fn shown_case_of_a_build() {
    let case = "mul_mat_id/w=iq2_xs,x=f32,e=4,u=2,m=64,n=2,k=512,b=2/route=shuffle,data=normal/v1-1";
    snapshot("shown_case_of_a_build", &stdout(&["show", case], None));
}
