//! What Cutaway takes from Rust, behind `include/cutaway_rust.h`.

mod json;
mod memory;
mod python;
mod template;

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::{Failure, Kind, StrftimeNow};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CutawayStr {
    data: *const c_char,
    size: usize,
}

#[repr(C)]
pub struct CutawayText {
    data: *mut c_char,
    size: usize,
    capacity: usize,
}

pub struct CutawayTemplate(template::ChatTemplate);

type Strftime = unsafe extern "C" fn(*mut c_void, CutawayStr, *mut c_char, usize) -> usize;

impl CutawayStr {
    /// The caller keeps the bytes alive during the call.
    unsafe fn get<'a>(self) -> Result<&'a str, Failure> {
        if self.size == 0 {
            return Ok("");
        }
        let bytes = std::slice::from_raw_parts(self.data.cast::<u8>(), self.size);
        std::str::from_utf8(bytes)
            .map_err(|e| Failure::new(Kind::Internal, format!("text is not UTF-8: {e}")))
    }
}

impl CutawayText {
    fn set(&mut self, text: String) {
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        self.data = bytes.as_mut_ptr().cast::<c_char>();
        self.size = bytes.len();
        self.capacity = bytes.capacity();
    }
}

#[no_mangle]
pub unsafe extern "C" fn cutaway_text_free(text: *mut CutawayText) {
    let text = &mut *text;
    if !text.data.is_null() {
        drop(Vec::from_raw_parts(
            text.data.cast::<u8>(),
            text.size,
            text.capacity,
        ));
    }
    *text = CutawayText {
        data: std::ptr::null_mut(),
        size: 0,
        capacity: 0,
    };
}

/// The engine recurses over expressions and values: a chain of operators is as deep as it is long,
/// and a loop can put a list into a list. What a template's allowed size and work can reach has to
/// fit. The memory is reserved and only what is used is taken.
const STACK: usize = 512 << 20;

thread_local! {
    /// The lowest address that the stack of this thread is known to reach; its highest: not known.
    static STACK_END: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn stack_pointer() -> usize {
    let here = 0u8;
    std::hint::black_box(&here) as *const u8 as usize
}

/// Fuzzers and others who make many small calls: the stack of this thread is deep already.
#[no_mangle]
pub extern "C" fn cutaway_stack_has(size: usize) {
    STACK_END.set(stack_pointer().saturating_sub(size));
}

/// Runs `body` on a stack of that size: the caller's, where it is known to have as much left.
fn on_deep_stack<T: Send>(body: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    if stack_pointer().saturating_sub(STACK_END.get()) >= STACK {
        return guarded(body);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".into())
            .stack_size(STACK)
            .spawn_scoped(scope, || guarded(body))
            .map_err(|e| Failure::new(Kind::Internal, format!("no thread for a template: {e}")))?;
        thread.join().unwrap_or_else(|_| {
            Err(Failure::new(
                Kind::Internal,
                "a template's thread ended early",
            ))
        })
    })
}

/// Runs `body` so that a panic becomes a failure, and says nothing on stderr.
fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Failure::new(Kind::Internal, format!("panic: {text}")))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cutaway_template_new(
    source: CutawayStr,
    out: *mut *mut CutawayTemplate,
    error: *mut CutawayText,
) -> Kind {
    *out = std::ptr::null_mut();
    let source = source.get();
    match on_deep_stack(|| template::ChatTemplate::new(source?)) {
        Ok(t) => {
            *out = Box::into_raw(Box::new(CutawayTemplate(t)));
            Kind::Ok
        }
        Err(failure) => {
            (*error).set(failure.message);
            failure.kind
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cutaway_template_free(t: *mut CutawayTemplate) {
    if !t.is_null() {
        drop(Box::from_raw(t));
    }
}

#[no_mangle]
pub unsafe extern "C" fn cutaway_template_render(
    t: *const CutawayTemplate,
    context: CutawayStr,
    strftime_now: Strftime,
    user: *mut c_void,
    out: *mut CutawayText,
) -> Kind {
    let user = user as usize; // an address is Send, and the closure lives only during this call
    let now: StrftimeNow = Box::new(move |format: &str| {
        let mut buffer = vec![0u8; 256 + 16 * format.len()];
        let format = CutawayStr {
            data: format.as_ptr().cast(),
            size: format.len(),
        };
        let n = unsafe {
            strftime_now(
                user as *mut c_void,
                format,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        };
        buffer.truncate(n);
        String::from_utf8_lossy(&buffer).into_owned()
    });
    let (t, context) = (&(*t).0, context.get());
    match on_deep_stack(|| t.render(context?, now)) {
        Ok(text) => {
            (*out).set(text);
            Kind::Ok
        }
        Err(failure) => {
            (*out).set(failure.message);
            failure.kind
        }
    }
}
