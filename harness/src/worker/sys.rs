//! The system calls that the standard library does not offer, each behind a safe function.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Ends the process without running destructors or exit handlers: a driver's could hang.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes any code, never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Takes over a file descriptor that the parent process left open for us, and keeps it from our own children.
///
/// The caller must call this once per descriptor, before anything else could own that number.
pub(crate) fn take_fd(fd: RawFd) -> io::Result<File> {
    // SAFETY: `fcntl` with these commands reads and sets one flag of a descriptor; a closed one gives an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, as just seen, and by the parent's promise in the environment it is ours alone:
    // this runs at the start of `main`, before a driver or another thread has opened anything.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Kills a process group led by a child that has not been waited for, so that its number cannot mean another.
pub(crate) fn kill_group(leader: u32) {
    if let Ok(leader @ 2..) = libc::pid_t::try_from(leader) {
        // SAFETY: `kill` touches no memory. A group that is gone gives an error, which is what was wanted.
        unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
}

/// True if a child has ended but was not waited for yet, or is no child of ours (any more).
pub(crate) fn has_ended(child: u32) -> bool {
    // SAFETY: `siginfo_t` is plain data for which zeros are valid, and `waitid` fills it; with `WNOWAIT` the child stays.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        (libc::waitid(libc::P_PID, child as libc::id_t, &raw mut info, how), info)
    };
    // Without an ended child the call succeeds and leaves the zeros.
    result != 0 || info.si_signo != 0
}

/// Dies of a segmentation fault, as the fake driver's `segv` does.
pub(crate) fn segfault() -> ! {
    // SAFETY: restoring the default action removes the handler that the Rust runtime uses to report stack overflows,
    // which would return from a raised signal; raising it then ends the process.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    exit_now(1)
}

/// Lets freed memory stay with this process for its next use, as far as its allocator can be told: the memory of each
/// case would else be given back, and made, zeroed and mapped again page by page for the next one.
pub(crate) fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, bytes) in [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 128 << 20)] {
        // SAFETY: `mallopt` may be called at any time; it sets a number of the allocator, under the allocator's lock.
        unsafe { libc::mallopt(option, bytes) };
    }
}

/// Reserves the memory or disk behind a file: writing to a mapping without it would be a SIGBUS when space runs out.
pub(crate) fn reserve(file: &File, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    // SAFETY: `posix_fallocate` acts on an open descriptor, which `file` is.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
    // Elsewhere space is not reserved; a full disk is then found by the page that hits it.
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    let error = file.set_len(len as u64).err().and_then(|e| e.raw_os_error()).unwrap_or(0);
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}
