/* blutensor: stable C interface of the tensor library.
 *
 * Opaque handles, plain structs that start with `struct_size`, status codes. Every function that returns int32_t returns a
 * BLUTENSOR_STATUS_*; on failure blutensor_last_error() has the message of this thread. Out-parameters named `out` receive
 * an owned reference: give it back with the matching *_release. Append only; anything else raises ABI_MAJOR.
 */
#ifndef BLUTENSOR_H
#define BLUTENSOR_H

#include <stddef.h>
#include <stdint.h>

#define BLUTENSOR_ABI_MAJOR 1
#define BLUTENSOR_ABI_MINOR 3

#define BLUTENSOR_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define BLUTENSOR_STATUS_OK 0
#define BLUTENSOR_STATUS_INVALID_VALUE 1 /* ValueError */
#define BLUTENSOR_STATUS_INVALID_TYPE 2  /* TypeError: wrong dtype or device */
#define BLUTENSOR_STATUS_OUT_OF_MEMORY 3 /* details: blualloc_last_oom() */
#define BLUTENSOR_STATUS_UNSUPPORTED 4
#define BLUTENSOR_STATUS_RUNTIME 5
#define BLUTENSOR_STATUS_IO 6
#define BLUTENSOR_STATUS_INTERRUPTED 7
#define BLUTENSOR_STATUS_INDEX 8        /* IndexError: an id, target or axis out of range */
#define BLUTENSOR_STATUS_CAPTURE 9      /* CaptureError */
#define BLUTENSOR_STATUS_AUTOGRAD 10    /* AutogradError: a write in place that would break the graph */
#define BLUTENSOR_STATUS_DEVICE_LOST 11 /* DeviceLostError: nothing on the GPU can be read any more */

/* dtypes: float32 0, bfloat16 1, float16 2, float64 3, int64 4, int32 5, uint8 6, uint16 7, bool 8, int8 9,
 * int16 10, uint32 11, uint64 12. Devices: cpu 0, cuda 1. */

typedef struct blutensor_tensor blutensor_tensor; /* reference counted; crosses packages as this pointer */
typedef struct blutensor_program blutensor_program;
typedef struct blutensor_family blutensor_family;

BLUTENSOR_API const char* blutensor_last_error(void);
BLUTENSOR_API uint32_t blutensor_abi_version(void);

/* The dtype in which two dtypes meet; an error where there is none. */
BLUTENSOR_API int32_t blutensor_promote(int32_t first, int32_t second, int32_t* out);

/* ------------------------------------------------------------------ tensors */

#define BLUTENSOR_MAX_RANK 8

typedef struct blutensor_tensor_info {
  uint32_t struct_size;
  int32_t dtype, device_type, device_index;
  int32_t rank;
  int32_t requires_grad; /* a gradient will be computed for it */
  int32_t is_leaf;       /* no operator produced it (or none that autograd recorded) */
  int32_t contiguous;
  int64_t shape[BLUTENSOR_MAX_RANK];
  int64_t strides[BLUTENSOR_MAX_RANK]; /* in elements */
  int64_t offset;                      /* in elements, from the start of the storage */
  uint64_t storage_id;
  uint64_t storage_bytes;
  uint64_t version;    /* writes in place to the storage so far */
  const char* grad_fn; /* name of the operator that produced it, or NULL */
} blutensor_tensor_info;

/* Uninitialised, row-major. */
BLUTENSOR_API int32_t blutensor_empty(const int64_t* shape, int32_t rank, int32_t dtype, int32_t device_type,
                                      int32_t device_index, blutensor_tensor** out);
/* A view over memory that somebody else owns; release(context) is called once, when the last view of it is gone (never during a
 * native replay). `data` is the address of element (0, ..., 0); strides in elements. */
BLUTENSOR_API int32_t blutensor_from_memory(void* data, const int64_t* shape, const int64_t* strides, int32_t rank,
                                            int32_t dtype, int32_t device_type, int32_t device_index,
                                            void (*release)(void* context), void* context, blutensor_tensor** out);
BLUTENSOR_API void blutensor_tensor_retain(blutensor_tensor* tensor);
BLUTENSOR_API void blutensor_tensor_release(blutensor_tensor* tensor);
BLUTENSOR_API int32_t blutensor_tensor_get_info(const blutensor_tensor* tensor, blutensor_tensor_info* info);
/* 1 where other tensors (views, what backward saved of a result) have its memory too, else 0. */
BLUTENSOR_API int32_t blutensor_tensor_is_shared(const blutensor_tensor* tensor);
/* Address of element (0, ..., 0) for the host to read or write: an error during capture (CAPTURE) and for a tensor that a captured
 * function left behind. `write` counts as a write in place by `op`. */
BLUTENSOR_API int32_t blutensor_tensor_data(blutensor_tensor* tensor, int32_t write, const char* op, void** data);
/* The same for any device, for the lifetime of slots and the checkpoint reader: no capture check, no version change. */
BLUTENSOR_API void* blutensor_tensor_address(const blutensor_tensor* tensor);
/* DLPack: a DLManagedTensor* of the tensor, and a tensor over a DLManagedTensor (takes it over on success). */
BLUTENSOR_API int32_t blutensor_to_dlpack(blutensor_tensor* tensor, void** dl_managed_tensor);
BLUTENSOR_API int32_t blutensor_from_dlpack(void* dl_managed_tensor, blutensor_tensor** out);
/* Destructor of a "dltensor" capsule, for PyCapsule_New; given PyCapsule_IsValid and PyCapsule_GetPointer. One in Python would run
 * while an exception may be on its way. (ABI 1.3) */
typedef void (*blutensor_capsule_destructor)(void* capsule);
BLUTENSOR_API blutensor_capsule_destructor blutensor_dlpack_destructor(int (*is_valid)(void* capsule, const char* name),
                                                                       void* (*pointer)(void* capsule,
                                                                                        const char* name));

/* ------------------------------------------------------------------ devices */

/* Everything that touches a CUDA device goes to one stream of it that does not synchronize with the legacy stream. */

/* Devices of a type that can be used. For cuda 0 means that blutensor_cuda_unavailable_reason() has a text. */
BLUTENSOR_API int32_t blutensor_device_count(int32_t device_type);
BLUTENSOR_API const char* blutensor_cuda_unavailable_reason(void);
/* UNSUPPORTED, with what to do about it, when the device cannot be used. */
BLUTENSOR_API int32_t blutensor_check_device(int32_t device_type, int32_t device_index);
/* JSON {"name", "total_bytes", "free_bytes", "capability", "multiprocessors", "driver", "runtime"} of a CUDA device, empty on
 * failure; valid until the next call on this thread. */
BLUTENSOR_API const char* blutensor_device_properties(int32_t device_index);
/* Waits for the device; reports what its kernels found (INDEX) and a lost device (DEVICE_LOST). */
BLUTENSOR_API int32_t blutensor_synchronize(int32_t device_type, int32_t device_index);
BLUTENSOR_API int32_t blutensor_compute_stream(int32_t device_type, int32_t device_index, void** stream);
/* A mark in the device's work: *event is NULL for the cpu. The host waits for a mark with event_wait; NULL is complete. */
BLUTENSOR_API int32_t blutensor_event_record(int32_t device_type, int32_t device_index, void** event);
BLUTENSOR_API int32_t blutensor_event_wait(void* event);
BLUTENSOR_API void blutensor_event_release(void* event);
/* Where this thread's operators without tensor operands make their results; cpu at first. */
BLUTENSOR_API int32_t blutensor_set_default_device(int32_t device_type, int32_t device_index);
/* Host memory that copies to and from a CUDA device overlap with. */
BLUTENSOR_API int32_t blutensor_empty_pinned(const int64_t* shape, int32_t rank, int32_t dtype, blutensor_tensor** out);
/* A copy of a row-major tensor on a device; of row-major tensors of one shape and dtype, on any two devices. From and to pinned
 * memory both only start: keep the source until the device was synchronized. */
BLUTENSOR_API int32_t blutensor_copy_to_device(blutensor_tensor* tensor, int32_t device_type, int32_t device_index,
                                               blutensor_tensor** out);
BLUTENSOR_API int32_t blutensor_copy_bytes(blutensor_tensor* to, blutensor_tensor* from);
/* The values of a row-major tensor to and from host memory of exactly its size; complete when the call returns. */
BLUTENSOR_API int32_t blutensor_tensor_read(blutensor_tensor* tensor, const char* op, void* host, uint64_t bytes);
BLUTENSOR_API int32_t blutensor_tensor_write(blutensor_tensor* tensor, const char* op, const void* host,
                                             uint64_t bytes);
/* `stream` (a cudaStream_t of the tensor's device) waits for what was computed, and counts as a user of the memory. */
BLUTENSOR_API int32_t blutensor_stream_begin(blutensor_tensor* tensor, void* stream);

/* ------------------------------------------------------------------ operators */

/* Kinds: 0 integer, 1 floating, 2 boolean, 3 integers, 4 dtype, 5 string, 6 floats (ABI 1.2), 7 axes (ABI 1.3). */
typedef struct blutensor_attr {
  int32_t kind;
  int32_t count; /* integers, floats, axes: how many */
  int64_t i;     /* integer, boolean, dtype; axes: not 0 for all of them, whatever count says. Integers in place of axes
                  * are taken as before ABI 1.3, when none of them meant all. */
  double f;
  union {
    const int64_t* ints;
    const double* floats;
  };
  const char* s;
} blutensor_attr;

/* The whole operator table as JSON: a list of {"id", "name", "doc", "category", "public", "inputs": [{"name", "kind": "required" |
 * "optional" | "list" | "optional_list", "written", "accepts_scalar"}], "attrs": [{"name", "kind", "required", "default", "choices"}], "outputs": [names], "view",
 * "composite", "differentiable", "effect", "lane", "grad_cases"}. Valid until the next call on this thread. */
BLUTENSOR_API const char* blutensor_operator_table(void);
/* Calls an operator. `inputs`: fixed inputs (NULL = not given), then the lists. `attrs`: all of them, in the table's order. Writes owned
 * handles to `outputs` (room for max_outputs) and their number to num_outputs. */
BLUTENSOR_API int32_t blutensor_call(uint32_t op_id, blutensor_tensor* const* inputs, int32_t num_inputs,
                                     int64_t list_length, const blutensor_attr* attrs, int32_t num_attrs,
                                     blutensor_tensor** outputs, int32_t max_outputs, int32_t* num_outputs);

/* The same; an operator without tensor operands makes its result on this device instead of the thread's default one. */
BLUTENSOR_API int32_t blutensor_call_on(int32_t device_type, int32_t device_index, uint32_t op_id,
                                        blutensor_tensor* const* inputs, int32_t num_inputs, int64_t list_length,
                                        const blutensor_attr* attrs, int32_t num_attrs, blutensor_tensor** outputs,
                                        int32_t max_outputs, int32_t* num_outputs);

/* Registration of an operator by another library (or through ctypes). Callbacks return a status; on failure they may leave a message with
 * blutensor_set_error(). */
typedef struct blutensor_view {
  void* data; /* NULL while shapes are inferred */
  int32_t dtype;
  int32_t rank; /* -1: an optional input that was not given */
  int64_t shape[BLUTENSOR_MAX_RANK];
  int64_t strides[BLUTENSOR_MAX_RANK];
} blutensor_view;

typedef struct blutensor_operator_desc {
  uint32_t struct_size;
  int32_t num_inputs; /* all required tensors */
  int32_t num_outputs;
  int32_t num_attrs;
  const char* name;
  const char* doc;
  const char* const* input_names;
  const char* const* attr_names;
  const int32_t* attr_kinds;
  uint64_t written_inputs;              /* bit i: input i is written in place */
  uint64_t saved_inputs, saved_outputs; /* what the gradient reads */
  int32_t lane;                         /* 0 compute, 1 communication, 2 copy */
  int32_t effect;                       /* 0 pure, 1 writes, 2 communicates */
  /* Fills dtype, rank, shape of the outputs (row-major). */
  int32_t (*infer)(void* context, const blutensor_view* inputs, const blutensor_attr* attrs, blutensor_view* outputs);
  int32_t (*launch_cpu)(void* context, const blutensor_view* inputs, const blutensor_attr* attrs,
                        const blutensor_view* outputs, void* stream);
  int32_t (*launch_cuda)(void* context, const blutensor_view* inputs, const blutensor_attr* attrs,
                         const blutensor_view* outputs, void* stream);
  /* Gradients of the inputs from those of the outputs, by calling operators: inputs/outputs are NULL where not saved, grad_outputs
   * NULL where unused; leaves owned handles (or NULL) in grad_inputs. May be NULL: not differentiable. */
  int32_t (*gradient)(void* context, blutensor_tensor* const* inputs, blutensor_tensor* const* outputs,
                      blutensor_tensor* const* grad_outputs, const blutensor_attr* attrs,
                      blutensor_tensor** grad_inputs);
  void* context;
} blutensor_operator_desc;
BLUTENSOR_API int32_t blutensor_register_operator(const blutensor_operator_desc* desc, uint32_t* op_id);
BLUTENSOR_API void blutensor_set_error(const char* message);

/* ------------------------------------------------------------------ autograd */

BLUTENSOR_API int32_t blutensor_set_requires_grad(blutensor_tensor* tensor, int32_t requires_grad);
/* The gradient of a leaf; *out NULL when there is none. A buffer that zero_grad marked stale is zeroed by this call. */
BLUTENSOR_API int32_t blutensor_get_grad(blutensor_tensor* tensor, blutensor_tensor** out);
BLUTENSOR_API int32_t blutensor_set_grad(blutensor_tensor* tensor, blutensor_tensor* grad); /* NULL drops it */
/* The dtype that a leaf's gradient is kept in: its own (the default), or float32 for a 16-bit leaf. A gradient of another dtype is dropped. */
BLUTENSOR_API int32_t blutensor_set_grad_dtype(blutensor_tensor* tensor, int32_t dtype);
BLUTENSOR_API int32_t blutensor_get_grad_dtype(const blutensor_tensor* tensor, int32_t* out);
/* Keeps the buffer: the next backward overwrites it. */
BLUTENSOR_API int32_t blutensor_mark_grad_stale(blutensor_tensor* tensor);
/* Whether the gradient exists and is not stale. */
BLUTENSOR_API int32_t blutensor_has_fresh_grad(const blutensor_tensor* tensor, int32_t* out);
BLUTENSOR_API int32_t blutensor_detach(blutensor_tensor* tensor, blutensor_tensor** out);
BLUTENSOR_API int32_t blutensor_grad_enabled(void);
BLUTENSOR_API void blutensor_set_grad_enabled(int32_t enabled);
/* Accumulates into the leaves' gradients. grads[i] NULL: ones for a 0-d root. */
BLUTENSOR_API int32_t blutensor_backward(blutensor_tensor* const* roots, blutensor_tensor* const* grads,
                                         int32_t num_roots, int32_t retain_graph, int32_t create_graph);
/* Gradients with respect to `inputs`; NULL where there is no path and allow_unused. Touches no leaf. */
BLUTENSOR_API int32_t blutensor_grad(blutensor_tensor* const* roots, blutensor_tensor* const* grads, int32_t num_roots,
                                     blutensor_tensor* const* inputs, int32_t num_inputs, int32_t retain_graph,
                                     int32_t create_graph, int32_t allow_unused, blutensor_tensor** grad_inputs);
/* A hook sees the gradient of a tensor when it is complete (for a leaf: before it is accumulated) and may replace it: *out NULL keeps it.
 * The callback's context is released by `release` when the tensor or the hook dies. */
typedef int32_t (*blutensor_grad_hook)(void* context, blutensor_tensor* grad, blutensor_tensor** out);
BLUTENSOR_API int32_t blutensor_add_hook(blutensor_tensor* tensor, blutensor_grad_hook hook, void (*release)(void*),
                                         void* context, uint64_t* hook_id);
BLUTENSOR_API int32_t blutensor_remove_hook(blutensor_tensor* tensor, uint64_t hook_id);
/* Makes `outputs` (fresh tensors that require no gradient) results of a node of the user's own: in backward it gets the gradients of
 * the outputs (NULL where unused) and leaves owned handles or NULL in grad_inputs, one per input. */
typedef int32_t (*blutensor_custom_gradient)(void* context, blutensor_tensor* const* grad_outputs, int32_t num_outputs,
                                             blutensor_tensor** grad_inputs, int32_t num_inputs);
BLUTENSOR_API int32_t blutensor_record_custom(const char* name, blutensor_tensor* const* inputs, int32_t num_inputs,
                                              blutensor_tensor* const* outputs, int32_t num_outputs,
                                              blutensor_custom_gradient gradient, void (*release)(void*),
                                              void* context);
typedef struct blutensor_autograd_stats {
  uint32_t struct_size, reserved;
  uint64_t live_nodes, arena_bytes, arena_resets;
} blutensor_autograd_stats;
BLUTENSOR_API int32_t blutensor_autograd_get_stats(blutensor_autograd_stats* stats);

/* ------------------------------------------------------------------ random numbers */

/* The generator of this thread, which is the process's where blutensor_generator_use() chose no other: state is an int64 tensor [2] = {seed, step} per device, the host's and those of other devices kept in
 * step (ask again after anything that may have written one); op ids count random operators since the last advance. */
BLUTENSOR_API int32_t blutensor_generator_state(blutensor_tensor** out);
BLUTENSOR_API int32_t blutensor_generator_state_on(int32_t device_type, int32_t device_index, blutensor_tensor** out);
/* Ends a step: step + 1 where the running capture works, else on all devices; op id 0. */
BLUTENSOR_API int32_t blutensor_generator_advance(void);
BLUTENSOR_API int64_t blutensor_generator_next_op_id(void);
BLUTENSOR_API void blutensor_generator_set_op_id(int64_t op_id);
BLUTENSOR_API int64_t blutensor_generator_op_id(void);
/* Starts a step: op id 0. Two recordings may draw other op ids only when a step began between them. */
BLUTENSOR_API void blutensor_generator_begin_step(void);

typedef struct blutensor_generator blutensor_generator; /* opaque */
/* Another generator, seed 0 and step 0. Since ABI 1.1. */
BLUTENSOR_API int32_t blutensor_generator_create(blutensor_generator** out);
BLUTENSOR_API void blutensor_generator_release(blutensor_generator* generator);
/* What this thread draws from until the next call; NULL: the process's. It keeps a reference. Since ABI 1.1. */
BLUTENSOR_API void blutensor_generator_use(blutensor_generator* generator);

/* ------------------------------------------------------------------ capture and Programs */

/* Between begin and end every operator call of this thread is executed and recorded. level 0: as called; 1: composite operators are
 * called in their decomposed form. */
BLUTENSOR_API int32_t blutensor_capture_begin(const char* name, int32_t level);
/* Slots: tensors that the caller fills before every run. Outputs: tensors that the captured function returns. */
BLUTENSOR_API int32_t blutensor_capture_end(blutensor_tensor* const* slots, int32_t num_slots,
                                            blutensor_tensor* const* outputs, int32_t num_outputs,
                                            blutensor_program** out);
BLUTENSOR_API void blutensor_capture_abort(void);
BLUTENSOR_API int32_t blutensor_capture_active(void);
/* An error (CAPTURE) that names the first operator that differs. */
BLUTENSOR_API int32_t blutensor_program_compare(const blutensor_program* first, const blutensor_program* second);
/* Plans memory and binds addresses; the program can be replayed from now on. family may be NULL (an arena of its own). */
BLUTENSOR_API int32_t blutensor_program_finalize(blutensor_program* program, blutensor_family* family);
BLUTENSOR_API void blutensor_program_release(blutensor_program* program);
/* level 0: native loop over the planned arena, on a CUDA device one launch of a graph; 1: operator by operator, each buffer allocated at its first use and freed after its last.
 * on_op (may be NULL) is called before every operator with its index and name (level 1 only). */
BLUTENSOR_API int32_t blutensor_program_replay(blutensor_program* program, int32_t level,
                                               int32_t (*on_op)(void* context, int64_t index, const char* name),
                                               void* context);
BLUTENSOR_API const char* blutensor_program_text(
    const blutensor_program* program); /* valid until the next call on this thread */
/* What a replay does: "native loop", "one graph of 412 nodes", "launches one by one: <why there is no graph>"; empty before the
 * program is finalized. Valid until the next call on this thread. */
BLUTENSOR_API const char* blutensor_program_execution(const blutensor_program* program);
typedef struct blutensor_program_info {
  uint32_t struct_size, reserved;
  int64_t num_calls, num_buffers, num_slots, num_outputs;
  uint64_t arena_bytes, peak_live_bytes, external_bytes, output_bytes, workspace_peak_bytes;
  int32_t device_type, device_index;
} blutensor_program_info;
BLUTENSOR_API int32_t blutensor_program_get_info(const blutensor_program* program, blutensor_program_info* info);

/* A family of Programs over one arena, and the native run loop. */
BLUTENSOR_API int32_t blutensor_family_create(const char* name, blutensor_family** out);
BLUTENSOR_API void blutensor_family_release(blutensor_family* family);

typedef int32_t (*blutensor_source_next)(void* context, void* const* slots, int32_t num_slots);
typedef struct blutensor_run_args {
  uint32_t struct_size;
  int32_t num_phases;                 /* of one step, in order */
  blutensor_program* const* programs; /* per phase; all finalized in this family */
  const int64_t* repeats;             /* per phase */
  int64_t steps;
  blutensor_source_next
      source_next; /* fills the slots before every program; NULL: slots are left alone. For a program on a
                                        CUDA device it is given pinned host memory, which is copied to the slots */
  void* source_context;
  int32_t num_feeds;   /* 0-d float32/float64/int64/int32 tensors written at the start of each step */
  int32_t num_metrics; /* 0-d tensors read at the end of each step */
  blutensor_tensor* const* feeds;
  const double* feed_values; /* [steps, num_feeds] */
  blutensor_tensor* const* metrics;
  double* metric_values; /* [steps, num_metrics] */
  int32_t (*interrupted)(
      void* context); /* asked between steps, at most every 50 ms; non-zero stops (status INTERRUPTED) */
  void* interrupted_context;
  int64_t steps_done;   /* out; also on failure */
  double host_seconds;  /* out: time outside programs and source, and not waiting for a device */
  double slice_seconds; /* above 0: returns after about this time, with fewer steps done */
  int32_t synchronous;  /* on a device: the source is not asked ahead of a step; the same batches */
  int32_t reserved;
} blutensor_run_args;
BLUTENSOR_API int32_t blutensor_family_run(blutensor_family* family, blutensor_run_args* args);
typedef struct blutensor_family_info {
  uint32_t struct_size, num_programs;
  uint64_t arena_bytes, peak_live_bytes; /* the largest of its programs */
} blutensor_family_info;
BLUTENSOR_API int32_t blutensor_family_get_info(const blutensor_family* family, blutensor_family_info* info);
/* The arena goes back to the pool until the next run or finalized program: for recording another one. (ABI 1.1) */
BLUTENSOR_API int32_t blutensor_family_give_back_arena(blutensor_family* family);

/* ------------------------------------------------------------------ process */

BLUTENSOR_API int32_t
blutensor_set_isa(const char* name); /* "reference", "avx2", "avx512", "auto"; tests and measurements */
BLUTENSOR_API const char* blutensor_isa(void);
/* How float32 matrix products run on CUDA from now on, process-wide: "ieee" (default) or "tf32". A program keeps what it was
 * recorded with. */
BLUTENSOR_API int32_t blutensor_set_float32_math(const char* name);
BLUTENSOR_API const char* blutensor_float32_math(void);
/* Called around every operator (also in replays); NULL removes it. One predictable branch when there is none. */
typedef struct blutensor_hooks {
  uint32_t struct_size, reserved;
  void (*op_begin)(void* context, const char* name);
  void (*op_end)(void* context, const char* name);
  void* context;
} blutensor_hooks;
BLUTENSOR_API int32_t blutensor_set_hooks(const blutensor_hooks* hooks);

#ifdef __cplusplus
}
#endif
#endif
