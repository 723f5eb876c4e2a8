//! Where a device sits on PCI.

use std::fmt;
use std::str::FromStr;

/// A PCI bus id: domain, bus, device, function.
///
/// It is read from what CUDA, OpenCL, Vulkan, NVML and sysfs print, whatever the case of its digits and the width of its
/// domain, and written as sysfs does: `0000:3b:00.0`. All four parts count: functions of one device are different GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciId {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciId {
    /// An id of numbers. A device has 5 bits and a function 3; `None` where a number has more.
    pub fn new(domain: u32, bus: u32, device: u32, function: u32) -> Option<Self> {
        let bus = u8::try_from(bus).ok()?;
        let device = u8::try_from(device).ok().filter(|d| *d < 32)?;
        let function = u8::try_from(function).ok().filter(|f| *f < 8)?;
        Some(PciId { domain, bus, device, function })
    }

    /// True for `0000:00:00.0`, where no GPU can be: the place of the host bridge. Drivers that know no bus id leave it
    /// like that.
    pub fn is_nowhere(self) -> bool {
        self == PciId { domain: 0, bus: 0, device: 0, function: 0 }
    }

    /// The id as a part of a device's alias: `pci-0000-3b-00.0`.
    pub fn path_safe(self) -> String {
        format!("pci-{}", self.to_string().replace(':', "-"))
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciId { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A text that is no PCI bus id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no PCI bus id; one looks like 0000:3b:00.0")]
pub struct NotPci(String);

impl FromStr for PciId {
    type Err = NotPci;

    fn from_str(text: &str) -> Result<Self, NotPci> {
        // Some tools say first what kind of bus it is.
        let id = text.trim();
        let id = id.strip_prefix("PCI-E, ").unwrap_or(id);
        parse(id).ok_or_else(|| NotPci(text.escape_debug().to_string()))
    }
}

fn parse(text: &str) -> Option<PciId> {
    let (place, function) = text.rsplit_once('.')?;
    let parts: Vec<&str> = place.split(':').collect();
    // Without a domain it is the first one.
    let (domain, bus, device) = match parts[..] {
        [domain, bus, device] => (domain, bus, device),
        [bus, device] => ("0", bus, device),
        _ => return None,
    };
    PciId::new(hex(domain, 8)?, hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?)
}

/// A number of at most so many digits. `from_str_radix` alone would take a sign as well.
fn hex(digits: &str, most: usize) -> Option<u32> {
    let is_hex = (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        text.parse::<PciId>().unwrap().to_string()
    }

    #[test]
    fn whatever_prints_it() {
        for (text, id) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            // CUDA and NVML, whose domain has 8 digits.
            ("0000:3B:00.0", "0000:3b:00.0"),
            ("00000000:3B:00.0", "0000:3b:00.0"),
            ("00010000:E1:1F.7", "10000:e1:1f.7"),
            ("10000:e1:1f.7", "10000:e1:1f.7"),
            ("FFFFFFFF:FF:1F.7", "ffffffff:ff:1f.7"),
            // lspci, clinfo, and the end of a line of sysfs.
            ("3b:00.0", "0000:3b:00.0"),
            ("PCI-E, 0000:3b:00.0", "0000:3b:00.0"),
            ("0000:3b:00.0\n", "0000:3b:00.0"),
            ("0:3:0.1", "0000:03:00.1"),
        ] {
            assert_eq!(written(text), id, "{text}");
            assert_eq!(written(id), id);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for bad in [
            "",
            " ",
            "0000:3b:00",
            "0000:3b:00.",
            "0000:3b:00.8",
            "0000:3b:00.00",
            "0000:3b:20.0",
            "0000:100:00.0",
            "100000000:3b:00.0",
            "0000:+b:00.0",
            "0000:3b:-1.0",
            "0000:3g:00.0",
            "1:0000:3b:00.0",
            "0000:3b:00.0.0",
            "0000.3b.00.0",
            ":3b:00.0",
            "0000:3b:00.0\0",
            "3b",
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
            "０000:3b:00.0",
        ] {
            assert!(bad.parse::<PciId>().is_err(), "{bad:?}");
        }
        let why = "a\nb".parse::<PciId>().unwrap_err().to_string();
        assert_eq!(why, "'a\\nb' is no PCI bus id; one looks like 0000:3b:00.0");
    }

    #[test]
    fn every_part_counts() {
        let ids = ["0000:3b:00.0", "0001:3b:00.0", "0000:3c:00.0", "0000:3b:01.0", "0000:3b:00.1", "10000:3b:00.0"];
        let ids = ids.map(|id| id.parse::<PciId>().unwrap());
        for (i, a) in ids.iter().enumerate() {
            assert!(ids[i + 1..].iter().all(|b| a != b));
        }
        assert!("0000:00:00.0".parse::<PciId>().unwrap().is_nowhere() && ids.iter().all(|id| !id.is_nowhere()));
        assert_eq!(ids[4].path_safe(), "pci-0000-3b-00.1");
    }
}
