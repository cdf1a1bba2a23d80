//! Memory that runs out. Rust ends the program when its allocator gives none. The allocator here asks
//! the system and, when that refuses, a small reserve of its own: a call that is under way gets to its
//! end, and what it gives back fills the reserve again. What does not fit into the reserve still ends
//! the program (docs/errors.md).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: usize = 256 << 10;

#[repr(align(4096))]
struct Room([u8; SIZE]);

/// Handed out from the beginning on; empty again when everything has come back.
struct State {
    room: Room,
    used: usize,
    live: usize,
}

pub struct Reserve {
    /// Taken for a few instructions, and only when memory has run out.
    locked: AtomicBool,
    state: UnsafeCell<State>,
}

// The state is touched under the lock alone, its bytes by whoever was given them.
unsafe impl Sync for Reserve {}

#[global_allocator]
static MEMORY: Reserve = Reserve {
    locked: AtomicBool::new(false),
    state: UnsafeCell::new(State {
        room: Room([0; SIZE]),
        used: 0,
        live: 0,
    }),
};

impl Reserve {
    fn with_state<T>(&self, body: impl FnOnce(*mut State) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        let out = body(self.state.get());
        self.locked.store(false, Ordering::Release);
        out
    }

    fn bytes(&self) -> *mut u8 {
        unsafe { ptr::addr_of_mut!((*self.state.get()).room.0).cast::<u8>() }
    }

    fn holds(&self, at: *mut u8) -> bool {
        (at as usize).wrapping_sub(self.bytes() as usize) < SIZE
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 4096 {
            return ptr::null_mut();
        }
        let bytes = self.bytes();
        self.with_state(|state| unsafe {
            let begin = ((*state).used + layout.align() - 1) & !(layout.align() - 1);
            match begin.checked_add(layout.size()) {
                Some(end) if end <= SIZE => {
                    (*state).used = end;
                    (*state).live += 1;
                    bytes.add(begin)
                }
                _ => ptr::null_mut(),
            }
        })
    }

    fn give_back(&self) {
        self.with_state(|state| unsafe {
            (*state).live -= 1;
            if (*state).live == 0 {
                (*state).used = 0;
            }
        });
    }
}

unsafe impl GlobalAlloc for Reserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = System.alloc(layout);
        if at.is_null() {
            return self.take(layout);
        }
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let at = System.alloc_zeroed(layout);
        if !at.is_null() {
            return at;
        }
        let at = self.take(layout);
        if !at.is_null() {
            ptr::write_bytes(at, 0, layout.size());
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if self.holds(at) {
            self.give_back();
        } else {
            System.dealloc(at, layout);
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.holds(at) {
            let moved = System.realloc(at, layout, size);
            if !moved.is_null() {
                return moved;
            }
        }
        let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
        if !moved.is_null() {
            ptr::copy_nonoverlapping(at, moved, layout.size().min(size));
            self.dealloc(at, layout);
        }
        moved
    }
}
