//! How often a device of our own sorts slots by expert: once for all matmuls of a layer, and anew whenever the ids may be
//! others, by whatever way they came.

use conform_cases::case::Case;
use conform_cases::plan::{Part, Place, Plan, Role, Step};
use conform_harness::backend::Device;

const LAYER: &str = "moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33/route=uniform,data=normal/v1-7";
const FRESH: &str = "moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33,cache=0/route=uniform,data=normal/v1-7";
const CALL: &str = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=64/route=shuffle,data=normal/v1-7";
const OTHER: &str = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=64/route=shuffle,data=normal/v1-8";

/// A way for other ids to come into their tensor: they are given, and where they go.
type Change = fn(&mut dyn Device, &[u8], Part);

/// Loads a plan and writes its inputs.
fn load(device: &mut dyn Device, plan: &Plan, case: &Case) {
    device.load(plan).unwrap();
    for (i, t) in plan.tensors.iter().enumerate().filter(|(_, t)| t.is_input()) {
        device.write(i, 0, &filled(case, i, t.parent_bytes())).unwrap();
    }
}

/// The bytes of an input.
fn filled(case: &Case, tensor: usize, bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; bytes];
    case.fill(tensor, &case.plan().tensors[tensor], &mut bytes);
    bytes
}

/// What a tensor holds.
fn read(device: &mut dyn Device, plan: &Plan, tensor: usize) -> Vec<u8> {
    let mut bytes = vec![0; plan.tensors[tensor].parent_bytes()];
    device.read(tensor, 0, &mut bytes).unwrap();
    bytes
}

/// Panics where the device sorts too often or too seldom.
pub(crate) fn check(device: &mut dyn Device) {
    layers(device);
    changed_ids(device);
}

/// Three matmuls over one routing, with and without it being kept: the same results.
fn layers(device: &mut dyn Device) {
    let outputs = [LAYER, FRESH].map(|id| {
        let case: Case = id.parse().unwrap();
        let plan = case.plan();
        load(device, &plan, &case);
        let once = if id == LAYER { 1 } else { 3 };
        device.run(0..plan.steps.len()).unwrap();
        assert_eq!(device.sorts(), Some(once), "{id}: sorted for three matmuls");
        // One by one: the router's answer is new with every run of its step.
        (0..plan.steps.len()).for_each(|i| device.run(i..i + 1).unwrap());
        assert_eq!(device.sorts(), Some(2 * once), "{id}: sorted for six matmuls and two routings");
        // Tables that were overwritten are no tables.
        device.poison_scratch(0x7fd1_5ea5).unwrap();
        device.run(1..plan.steps.len()).unwrap();
        assert_eq!(device.sorts(), Some(3 * once), "{id}: sorted after scratch was overwritten");
        let outputs = (0..plan.tensors.len()).filter(|i| plan.tensors[*i].is_output());
        outputs.map(|i| read(device, &plan, i)).collect::<Vec<_>>()
    });
    assert_eq!(outputs[0], outputs[1], "what is kept changes no result");
}

/// Ids that are written, uploaded or copied are other ids.
fn changed_ids(device: &mut dyn Device) {
    const IDS: usize = 2;
    const OUT: usize = 3;
    let [case, other]: [Case; 2] = [CALL, OTHER].map(|id| id.parse().unwrap());
    let mut plan = case.plan();
    let bytes = plan.tensors[IDS].parent_bytes();
    // The other ids, to be copied from.
    let mut source = plan.tensors[IDS].clone();
    source.role = Role::Output;
    plan.tensors.push(source);
    let others = filled(&other, IDS, bytes);
    let part = Part { tensor: IDS, here: Place::at(0), there: Place::at(0), size: bytes, count: 1 };
    let expected = |device: &mut dyn Device, ids: &[u8]| {
        load(device, &plan, &case);
        device.write(IDS, 0, ids).unwrap();
        device.run(0..1).unwrap();
        read(device, &plan, OUT)
    };
    let (right, changed) = (expected(device, &filled(&case, IDS, bytes)), expected(device, &others));
    assert_ne!(right, changed);
    let ways: [(&str, Change); 3] = [
        ("written", |device, ids, part| device.write(part.tensor, 0, ids).unwrap()),
        ("uploaded", |device, ids, part| device.upload(ids, &[part]).unwrap()),
        ("copied", |device, _, part| device.copy(4, &[part]).unwrap()),
    ];
    for (way, change) in ways {
        load(device, &plan, &case);
        device.write(4, 0, &others).unwrap();
        device.run(0..1).unwrap();
        device.run(0..1).unwrap();
        assert_eq!(device.sorts(), Some(1), "sorted for two matmuls of the same ids");
        assert_eq!(read(device, &plan, OUT), right);
        change(device, &others, part);
        device.run(0..1).unwrap();
        assert_eq!(device.sorts(), Some(2), "sorted after ids were {way}");
        assert_eq!(read(device, &plan, OUT), changed, "ids that were {way}");
    }
    assert!(matches!(plan.steps[0], Step::MulMatId { ids: IDS, out: OUT, .. }));
}
