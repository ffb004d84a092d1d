//! Status codes, and the message of the last failed call of a thread.
//!
//! Must hold: a panic ends as a status. A message stays valid until the thread's next call.
#![expect(non_camel_case_types, reason = "names of the C library")]
#![expect(unsafe_code, reason = "functions for C")]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use dl_runtime::locked;
use tracing::Level;

use crate::arguments::Pointer;
use crate::failure::DL_status::{
    self, DL_CANCELLED, DL_CONFLICT, DL_CORRUPT, DL_DENIED, DL_END, DL_FULL, DL_INTERNAL,
    DL_INVALID, DL_LOCAL, DL_NEEDS_RECOVERY, DL_NOT_FOUND, DL_OK, DL_PARTLY, DL_TIMED_OUT,
    DL_TOO_SHORT, DL_UNAVAILABLE, DL_UNREACHABLE,
};
use crate::failure::Failure;

/// The statuses with their names.
const NAMES: [(DL_status, &CStr); 17] = [
    (DL_OK, c"DL_OK"),
    (DL_NOT_FOUND, c"DL_NOT_FOUND"),
    (DL_INVALID, c"DL_INVALID"),
    (DL_CONFLICT, c"DL_CONFLICT"),
    (DL_NEEDS_RECOVERY, c"DL_NEEDS_RECOVERY"),
    (DL_FULL, c"DL_FULL"),
    (DL_CORRUPT, c"DL_CORRUPT"),
    (DL_DENIED, c"DL_DENIED"),
    (DL_UNAVAILABLE, c"DL_UNAVAILABLE"),
    (DL_TIMED_OUT, c"DL_TIMED_OUT"),
    (DL_CANCELLED, c"DL_CANCELLED"),
    (DL_INTERNAL, c"DL_INTERNAL"),
    (DL_UNREACHABLE, c"DL_UNREACHABLE"),
    (DL_LOCAL, c"DL_LOCAL"),
    (DL_TOO_SHORT, c"DL_TOO_SHORT"),
    (DL_PARTLY, c"DL_PARTLY"),
    (DL_END, c"DL_END"),
];

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs a call, and keeps the message of its failure.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Failure>) -> DL_status {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(of_panic(&*panic)));
    let Err(Failure { status, text }) = done else { return DL_OK };
    let text: Vec<u8> = text.into_bytes().into_iter().filter(|byte| *byte != 0).collect();
    // A thread at its end has no message.
    let _ = MESSAGE.try_with(|message| {
        message.replace(CString::new(text).unwrap_or_default());
    });
    status
}

fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("the library failed");
    Failure::new(DL_INTERNAL, format!("{text}; report the fault, with the logs of the server"))
}

/// The reason of the last failed call of this thread. Valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn DL_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status, such as "DL_NOT_FOUND". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn DL_name(status: c_int) -> *const c_char {
    let known = NAMES.iter().find(|(known, _)| *known as c_int == status);
    known.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// The version of the library, such as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn DL_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// A function for messages: level (1 error, 2 warning, 3 information), text, and the argument of
/// DL_set_log.
pub type DL_log =
    Option<unsafe extern "C" fn(level: c_int, text: *const c_char, argument: *mut c_void)>;

static LOG: Mutex<Option<(DL_log, Pointer<c_void>)>> = Mutex::new(None);

/// Passes the messages of the library to a function, from any of its threads; NULL passes them to no
/// function. The function must return soon, and must not call this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_set_log(function: DL_log, argument: *mut c_void) {
    *locked(&LOG) = Some((function, Pointer(argument)));
    libdiesel::log::pass_to(log);
}

fn log(level: Level, text: String) {
    // A fork may leave the lock locked in the child.
    let Ok(log) = LOG.try_lock().map(|log| *log) else { return };
    let (Some((Some(function), argument)), Ok(text)) = (log, CString::new(text)) else { return };
    let level = match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        _ => 3,
    };
    // SAFETY: the caller of DL_set_log gave a function with these arguments.
    unsafe { function(level, text.as_ptr(), argument.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        #[expect(unsafe_code, reason = "a text of C")]
        // SAFETY: a text with NUL at its end.
        unsafe { CStr::from_ptr(DL_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_ends_as_a_status_with_its_text() {
        let number = 7;
        assert_eq!(call(|| panic!("number {number} broke")), DL_INTERNAL);
        assert!(message().starts_with("number 7 broke; report"), "{}", message());
        assert_eq!(call(|| panic!("plain")), DL_INTERNAL);
        assert!(message().starts_with("plain; report"), "{}", message());
        assert_eq!(call(|| std::panic::panic_any(3)), DL_INTERNAL);
        assert_eq!(call(|| Ok(())), DL_OK);
        assert!(message().starts_with("the library failed"), "{}", message());
        assert_eq!(call(|| Err(Failure::invalid("with\0nul"))), DL_INVALID);
        assert_eq!(message(), "withnul");
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
    }
}
