/* The one header of the Rust library. Strings are UTF-8 with a length, never NUL-terminated. No
 * call panics, prints or exits: whatever goes wrong inside comes back as a status and a text. */
#ifndef CUTAWAY_RUST_H
#define CUTAWAY_RUST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* data;
  size_t size;
} cutaway_str;

/* A text made by the library. Free it with cutaway_text_free, also after an error. */
typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} cutaway_text;

typedef enum {
  CUTAWAY_OK = 0,
  CUTAWAY_SYNTAX = 1,   /* the template does not parse */
  CUTAWAY_RAISED = 2,   /* the template called raise_exception: the text is its message */
  CUTAWAY_FAILED = 3,   /* rendering failed (an undefined value, a wrong type, …) */
  CUTAWAY_LIMIT = 4,    /* the template did more work than is allowed */
  CUTAWAY_INTERNAL = 5, /* a panic inside the library, or input that is not JSON */
} cutaway_status;

void cutaway_text_free(cutaway_text* text);

/* Chat templates: minijinja in the environment that transformers sets up (trim_blocks,
 * lstrip_blocks, loop controls, Python's string methods, tojson, raise_exception, strftime_now;
 * {% generation %} blocks are transparent). A template may be rendered from several threads. */
typedef struct cutaway_template cutaway_template;

/* Templates are read and rendered on a stack of 512 MB, in a thread of their own for each call.
 * After this call that is spared on the calling thread wherever its own stack has as much left: it
 * has `size` bytes below the caller's frame, and it is the caller who knows that. */
void cutaway_stack_has(size_t size);

/* On CUTAWAY_OK *out is the template; otherwise `error` says why and *out is null. */
cutaway_status cutaway_template_new(cutaway_str source, cutaway_template** out,
                                    cutaway_text* error);
void cutaway_template_free(cutaway_template* t);

/* Writes the time of the call by a strftime format into out[0..capacity); returns the length. */
typedef size_t (*cutaway_strftime)(void* user, cutaway_str format, char* out, size_t capacity);

/* `context`: a JSON object, the template's variables. `out`: the rendered text, or the error's. */
cutaway_status cutaway_template_render(const cutaway_template* t, cutaway_str context,
                                       cutaway_strftime strftime_now, void* user,
                                       cutaway_text* out);

#ifdef __cplusplus
}
#endif

#endif
