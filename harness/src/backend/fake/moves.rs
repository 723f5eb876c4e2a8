//! Lies about bytes that are moved: what a wrong transfer leaves behind. All are deterministic.

use conform_cases::plan::Part;

use super::{Device, DeviceError};
use crate::backend::moves::pieces;
use crate::worker::FREED;

/// How bytes are moved wrongly, as a rule names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MoveLie {
    /// Not at all wrongly: no rule has this.
    #[default]
    None,
    /// `upload-none`: an upload moves nothing and says that it is done.
    UploadNone,
    /// `upload-late`: an upload reads its source after the call, when the next one is made: it finds freed memory.
    UploadLate,
    /// `upload-long`: an upload writes one piece more than it should, with the bytes of the last.
    UploadLong,
    /// `upload-short`: an upload leaves out its last piece.
    UploadShort,
    /// `upload-dense`: an upload takes pieces to lie one after the other, on both sides.
    UploadDense,
    /// `upload-fails`: an upload fails when half of its pieces are written.
    UploadFails,
    /// `fetch-stale`: a fetch does not wait for the copy that was made last.
    FetchStale,
}

/// Every lie by its name.
const NAMES: [(&str, MoveLie); 7] = [
    ("upload-none", MoveLie::UploadNone),
    ("upload-late", MoveLie::UploadLate),
    ("upload-long", MoveLie::UploadLong),
    ("upload-short", MoveLie::UploadShort),
    ("upload-dense", MoveLie::UploadDense),
    ("upload-fails", MoveLie::UploadFails),
    ("fetch-stale", MoveLie::FetchStale),
];

/// What a device has said to be done, or queued, and has not done yet.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    uploaded: Vec<Part>,
    copied: Option<(usize, Vec<Part>)>,
}

impl PutOff {
    /// Does it. The memory that was to be uploaded is long gone.
    pub(super) fn act(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        for part in std::mem::take(&mut self.uploaded) {
            let freed = vec![FREED; part.size];
            part.pieces().try_for_each(|(here, _)| device.write(part.tensor, here, &freed))?;
        }
        match self.copied.take() {
            Some((from, parts)) => device.copy(from, &parts),
            None => Ok(()),
        }
    }

    /// A fetch that comes before a copy that was put off.
    pub(super) fn fetch(&mut self, device: &mut dyn Device, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        let copied = self.copied.take();
        self.act(device)?;
        let fetched = device.fetch(to, parts);
        self.copied = copied;
        fetched.and(self.act(device))
    }
}

impl MoveLie {
    pub(super) fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, lie)| *lie)
    }

    pub(super) fn copy(
        self,
        device: &mut dyn Device,
        put_off: &mut PutOff,
        from: usize,
        parts: &[Part],
    ) -> Result<(), DeviceError> {
        if self == MoveLie::FetchStale {
            put_off.copied = Some((from, parts.to_vec()));
            return Ok(());
        }
        device.copy(from, parts)
    }

    /// `sizes` has the bytes of each tensor.
    pub(super) fn upload(
        self,
        device: &mut dyn Device,
        put_off: &mut PutOff,
        sizes: &[usize],
        from: &[u8],
        parts: &[Part],
    ) -> Result<(), DeviceError> {
        match self {
            MoveLie::None | MoveLie::FetchStale => device.upload(from, parts),
            MoveLie::UploadNone => Ok(()),
            MoveLie::UploadLate => {
                put_off.uploaded = parts.to_vec();
                Ok(())
            }
            MoveLie::UploadLong => {
                device.upload(from, parts)?;
                let beyond = parts.iter().rev().find_map(|part| one_more(part, sizes));
                beyond.map_or(Ok(()), |part| device.upload(from, &[part]))
            }
            MoveLie::UploadShort => {
                let mut parts = parts.to_vec();
                if let Some(last) = parts.iter_mut().rev().find(|p| p.count > 0) {
                    last.count -= 1;
                }
                device.upload(from, &parts)
            }
            MoveLie::UploadDense => {
                let dense: Vec<Part> = parts.iter().copied().map(without_strides).collect();
                device.upload(from, &dense)
            }
            MoveLie::UploadFails => {
                let all: Vec<Part> = parts.iter().copied().flat_map(pieces).collect();
                device.upload(from, &all[..all.len() / 2])?;
                Err(DeviceError("fakeMemcpyAsync: lost half-way (-6)".into()))
            }
        }
    }
}

/// The piece that would follow the last one, if it lies in the tensor.
fn one_more(part: &Part, sizes: &[usize]) -> Option<Part> {
    let mut last = pieces(*part).last()?;
    last.here.at += part.here.stride.max(part.size);
    last.fits(*sizes.get(part.tensor)?, usize::MAX).then_some(last)
}

fn without_strides(mut part: Part) -> Part {
    for place in [&mut part.here, &mut part.there] {
        place.stride = place.stride.min(part.size);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{CpuDevice, Stages};
    use conform_cases::formats::ElemType;
    use conform_cases::plan::{Place, Plan, Role, Tensor};

    /// Tensor 0 of twelve zeros after bytes 1 to 4 were uploaded to 2, 3 and 6, 7; what was said; and what a fetch saw
    /// of tensor 1 after 9 was copied over its 0.
    fn told(lie: MoveLie) -> (Vec<u8>, Result<(), DeviceError>, u8) {
        let tensors =
            ["a", "b", "c"].map(|name| Tensor::whole(name, ElemType::I8, [12, 1, 1, 1], Role::Output)).to_vec();
        let plan = Plan { case: String::new(), tensors, steps: vec![], ..Plan::default() };
        let (mut device, mut put_off) = (CpuDevice::new(Stages::default()), PutOff::default());
        device.load(&plan).unwrap();
        device.write(2, 0, &[9]).unwrap();
        let place = |at, stride| Place { at, stride };
        let part = Part { tensor: 0, here: place(2, 4), there: place(0, 2), size: 2, count: 2 };
        let said = lie.upload(&mut device, &mut put_off, &[12; 3], &[1, 2, 3, 4], &[part]);
        put_off.act(&mut device).unwrap();
        let one = Part { tensor: 1, size: 1, count: 1, here: place(0, 0), there: place(0, 0) };
        lie.copy(&mut device, &mut put_off, 2, &[one]).unwrap();
        let (mut seen, mut all) = ([7], vec![0; 12]);
        put_off.fetch(&mut device, &mut seen, &[one]).unwrap();
        // A stale copy is made in the end.
        let mut copied = [7];
        device.read(1, 0, &mut copied).unwrap();
        assert_eq!(copied, [9]);
        device.read(0, 0, &mut all).unwrap();
        (all, said, seen[0])
    }

    #[test]
    fn every_lie_does_what_it_says() {
        let right = [0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0];
        let of = |name: &str| told(MoveLie::parse(name).unwrap());
        let ok = |bytes: [u8; 12], seen: u8| (bytes.to_vec(), Ok(()), seen);
        assert_eq!(told(MoveLie::None), ok(right, 9));
        assert_eq!(of("upload-none"), ok([0; 12], 9));
        let freed = right.map(|b| if b == 0 { 0 } else { FREED });
        assert_eq!(of("upload-late"), ok(freed, 9));
        assert_eq!(of("upload-long"), ok([0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 3, 4], 9));
        assert_eq!(of("upload-short"), ok([0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0], 9));
        assert_eq!(of("upload-dense"), ok([0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0], 9));
        assert_eq!(of("fetch-stale"), ok(right, 0));
        let (bytes, said, _) = of("upload-fails");
        assert_eq!(bytes, [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(said.unwrap_err().0.contains("half-way"));
    }
}
