/* blualloc: stream-ordered caching memory pools and a planner that packs known lifetimes into one arena.
 *
 * This header is the whole native interface: plain C, exported functions, opaque handles.
 *
 * Conventions
 *   - Every function that can fail returns a status (BLUALLOC_OK ... below). blualloc_last_error() then holds the
 *     text, thread-local and never NULL. Outputs are written only on success unless said otherwise.
 *   - A struct passed by pointer starts with `uint32_t struct_size`, set by the caller to sizeof(the struct) it was
 *     compiled with. Structs and functions are only ever appended (ABI minor); anything else is a new ABI major.
 *   - Sizes are bytes, uint64_t. A device is (device_type, device_index): type BLUALLOC_DEVICE_. A stream is an
 *     opaque pointer of the device; NULL is the device's default stream.
 *   - All functions may be called from any thread.
 */
#ifndef BLUALLOC_BLUALLOC_H
#define BLUALLOC_BLUALLOC_H

#include <stddef.h>
#include <stdint.h>

#define BLUALLOC_ABI_MAJOR 1
#define BLUALLOC_ABI_MINOR 1

#if defined(_WIN32)
#define BLUALLOC_API __declspec(dllexport)
#else
#define BLUALLOC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------------ */

#define BLUALLOC_OK 0
#define BLUALLOC_INVALID_VALUE 1
#define BLUALLOC_INVALID_TYPE 2
#define BLUALLOC_OUT_OF_MEMORY 3
#define BLUALLOC_UNSUPPORTED 4 /* this build or machine has no such device */
#define BLUALLOC_RUNTIME_FAILURE 5
#define BLUALLOC_IO_FAILURE 6
#define BLUALLOC_INTERRUPTED 7
#define BLUALLOC_OUT_OF_RANGE 8

#define BLUALLOC_DEVICE_CPU 0
#define BLUALLOC_DEVICE_CUDA 1
#define BLUALLOC_DEVICE_PINNED 2 /* host memory that every CUDA device reads and writes directly; index 0 */

/* major << 16 | minor. */
BLUALLOC_API uint32_t blualloc_abi_version(void);
/* Text of this thread's last failure; empty before the first one. Valid until the thread's next failing call. */
BLUALLOC_API const char* blualloc_last_error(void);

/* ---- Devices ----------------------------------------------------------------------------------------------- */

/* What a pool needs from a device. The implementations for the host (mmap), CUDA devices and pinned host memory are built
 * in, the latter two made at first use; others register theirs.
 * Callbacks return a BLUALLOC_ status and may be called from any thread, with the pool's mutex held: they must not
 * call back into the pool. An `event` is an opaque handle that the device makes and destroys.
 *
 * Memory: `reserve` takes address space, `map` puts memory behind part of it, `unmap` gives that memory back,
 * `release` gives the address space back. Addresses and sizes of map/unmap are multiples of `granularity`; the base
 * of a reservation is aligned to `granularity` or better.
 *
 * A device that cannot map parts of a reservation sets BLUALLOC_WHOLE_SEGMENTS: `reserve` takes address space with the
 * memory behind it, `release` gives both back, and map and unmap are NULL. Its reservations are aligned to min_alignment
 * and as large as the pool grows at a time.
 *
 * A device whose work is complete when the call that started it returns (the host) leaves the event callbacks NULL:
 * all its streams are then one. Otherwise all five must be given. */
#define BLUALLOC_WHOLE_SEGMENTS 1

typedef struct blualloc_device_ops {
  uint32_t struct_size;
  uint32_t flags;         /* BLUALLOC_WHOLE_SEGMENTS or 0 */
  const char* name;       /* "host", "cuda:0"; copied at registration */
  void* ctx;              /* first argument of every callback */
  uint64_t granularity;   /* power of two >= min_alignment, unit of map and unmap */
  uint64_t min_alignment; /* power of two >= 64: every block starts at a multiple of it */
  int32_t (*reserve)(void* ctx, uint64_t bytes, void** address);
  int32_t (*release)(void* ctx, void* address, uint64_t bytes);
  int32_t (*map)(void* ctx, void* address, uint64_t bytes); /* BLUALLOC_OUT_OF_MEMORY when there is none left */
  int32_t (*unmap)(void* ctx, void* address, uint64_t bytes);
  /* Makes an event that completes with everything put on `stream` so far. */
  int32_t (*record_event)(void* ctx, void* stream, void** event);
  /* Later work on `stream` waits for the event; the host does not. */
  int32_t (*wait_event)(void* ctx, void* stream, void* event);
  /* *done = 1 when complete. Never decides where a block is placed: that would depend on timing. */
  int32_t (*query_event)(void* ctx, void* event, int32_t* done);
  /* The host waits for the event. */
  int32_t (*synchronize_event)(void* ctx, void* event);
  int32_t (*destroy_event)(void* ctx, void* event);
  /* What the device has, whoever holds it; for messages. NULL when it cannot be told. Since ABI 1.1. */
  int32_t (*memory)(void* ctx, uint64_t* free_bytes, uint64_t* total_bytes);
  /* The piece of memory around a mapped address that can only be unmapped whole. NULL: any granule can be unmapped by
   * itself. Since ABI 1.1. */
  int32_t (*piece)(void* ctx, void* address, void** start, uint64_t* bytes);
} blualloc_device_ops;

/* The built-in host device: mmap-ed anonymous memory, given back with munmap semantics. All pools together map no more
 * than the machine's physical memory, or the control group's limit where that is smaller. */
BLUALLOC_API const blualloc_device_ops* blualloc_host_device(void);
/* How a CUDA device's memory is taken. */
#define BLUALLOC_SEGMENTS_AUTO 0    /* virtual where the driver can, else whole */
#define BLUALLOC_SEGMENTS_VIRTUAL 1 /* address space with memory mapped behind it as needed (cuMemMap) */
#define BLUALLOC_SEGMENTS_WHOLE 2   /* as cudaMalloc gives it */
/* The built-in table of cuda:<index>, for pools that choose how memory is taken; the default pool uses
 * BLUALLOC_SEGMENTS_AUTO. BLUALLOC_UNSUPPORTED: no such device (the text says why and what to do), or it cannot do
 * virtual segments. The table lives as long as the process. */
BLUALLOC_API int32_t blualloc_cuda_device(int32_t device_index, int32_t segments, const blualloc_device_ops** out);
/* How many devices of a type this process can use; 0 for unknown types. Starts no context. */
BLUALLOC_API int32_t blualloc_device_count(int32_t device_type);
/* Memory of a registered or built-in device, whoever holds it: free now, and all there is. Either may be NULL. */
BLUALLOC_API int32_t blualloc_device_memory(int32_t device_type, int32_t device_index, uint64_t* free_bytes,
                                            uint64_t* total_bytes);
/* Why there is no CUDA device and what to do about it; empty when there is one. Valid as long as the process. */
BLUALLOC_API const char* blualloc_cuda_reason(void);
/* Makes a device known, so that its default pool can be asked for. The table is copied; ctx must outlive the process'
 * use of the device. Fails when the device is already registered (cpu:0 always is, built-in CUDA devices from their first
 * use on). */
BLUALLOC_API int32_t blualloc_register_device(int32_t device_type, int32_t device_index,
                                              const blualloc_device_ops* ops);

/* ---- Pools ------------------------------------------------------------------------------------------------- */

typedef struct blualloc_pool blualloc_pool; /* opaque */

typedef struct blualloc_pool_options {
  uint32_t struct_size;
  uint32_t reserved;
  int32_t device_type; /* default cpu:0; ignored when `device` is given, except in messages */
  int32_t device_index;
  const blualloc_device_ops* device; /* NULL: the registered device. Copied; ctx must outlive the pool */
  const char* name;                  /* shown in messages; NULL: the device's name. Copied */
  uint64_t segment_bytes;            /* address space taken at a time; 0: 64 GiB, less where that fails */
  uint64_t growth_bytes;             /* least memory mapped at a time; 0: 2 MiB. It grows to 1/16 of what is reserved,
                                        at most 32 MiB, and shrinks to what is needed near the limit */
  uint64_t limit_bytes;              /* most memory reserved; 0: no limit */
  uint64_t alignment;                /* sizes are rounded up to it; power of two, 0: the device's min_alignment */
  uint64_t shuffle_seed;             /* not 0: place blocks at varied addresses drawn from this seed (for tests that
                                        results do not depend on addresses) */
} blualloc_pool_options;

/* The process-wide pool of a device, made at first use, never destroyed. BLUALLOC_UNSUPPORTED when no such device. */
BLUALLOC_API int32_t blualloc_default_pool(int32_t device_type, int32_t device_index, blualloc_pool** out);
/* Options for the default pool of (options->device_type, options->device_index); `device` must be NULL. Fails once
 * that pool exists. */
BLUALLOC_API int32_t blualloc_configure(const blualloc_pool_options* options);
/* A private pool. options NULL: all defaults on cpu:0. */
BLUALLOC_API int32_t blualloc_pool_create(const blualloc_pool_options* options, blualloc_pool** out);
/* Waits for the device's pending work on the pool's memory and gives everything back. With live blocks it fails and
 * changes nothing, unless `force` is not 0. NULL is allowed; a default pool is refused. No other thread may still be
 * using the pool. */
BLUALLOC_API int32_t blualloc_pool_destroy(blualloc_pool* pool, int32_t force);

/* Allocates `bytes` for use on `stream`. The address is a multiple of the device's min_alignment (64 on the host);
 * contents are undefined. bytes = 0 gives NULL and touches nothing. `tag` names the owner in snapshots and messages
 * (copied; NULL is "untagged").
 *
 * Choice of place: the smallest free block that fits among those of `stream` (lowest address on ties); else memory is
 * mapped, extending a free block at the end of what is mapped when there is one; else, at the limit, free blocks of
 * other streams are taken after `stream` was made to wait for them; else the cache is given back and the allocation
 * tried once more. It depends on the sequence of calls alone.
 *
 * BLUALLOC_OUT_OF_MEMORY: nothing changed but the cache (given back); see blualloc_last_oom. */
BLUALLOC_API int32_t blualloc_allocate(blualloc_pool* pool, uint64_t bytes, void* stream, const char* tag, void** out);
/* Frees in stream order: work put on `stream` so far may still use the memory; it can be reused at once on `stream`,
 * and elsewhere only behind an event. When the block was allocated for another stream, that one counts as a recorded
 * use. NULL is allowed. An address that is not a live block of the pool (a double free,
 * an interior pointer) is BLUALLOC_INVALID_VALUE and changes nothing. */
BLUALLOC_API int32_t blualloc_free(blualloc_pool* pool, void* ptr, void* stream);
/* Declares that `stream` uses the block too: after its free, reuse waits for what `stream` was given until the free. */
BLUALLOC_API int32_t blualloc_record_use(blualloc_pool* pool, void* ptr, void* stream);
/* Call when `stream` has been synchronized and goes away: its free blocks then belong to no stream. */
BLUALLOC_API int32_t blualloc_forget_stream(blualloc_pool* pool, void* stream);
/* Renames the owner of a live block. */
BLUALLOC_API int32_t blualloc_set_tag(blualloc_pool* pool, void* ptr, const char* tag);

/* Most bytes the pool may reserve; 0: none. When more is reserved the cache is given back; what is live stays, and
 * nothing is mapped until it is below. */
BLUALLOC_API int32_t blualloc_set_limit(blualloc_pool* pool, uint64_t bytes);
/* Gives every free granule back to the device (after waiting for pending work on it). *returned may be NULL. */
BLUALLOC_API int32_t blualloc_trim(blualloc_pool* pool, uint64_t* returned);

/* ---- Statistics -------------------------------------------------------------------------------------------- */

typedef struct blualloc_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t live_bytes;          /* sum over live blocks of the bytes asked for */
  uint64_t peak_live_bytes;     /* since creation or blualloc_reset_peak */
  uint64_t live_block_bytes;    /* the same blocks with their rounding */
  uint64_t reserved_bytes;      /* memory mapped from the device */
  uint64_t peak_reserved_bytes; /* since creation or blualloc_reset_peak */
  uint64_t cached_bytes;        /* reserved and free */
  uint64_t largest_free_bytes;  /* largest free block of any stream */
  uint64_t wasted_bytes;        /* live_block_bytes - live_bytes: rounding and slivers too small to split off */
  uint64_t num_live;            /* live blocks */
  uint64_t num_allocations;     /* since creation, as all num_ below */
  uint64_t num_frees;
  uint64_t num_splits;
  uint64_t num_merges;
  uint64_t num_maps; /* calls of the device's map */
  uint64_t num_unmaps;
  uint64_t num_event_waits;   /* waits put on streams */
  uint64_t num_out_of_memory; /* failed allocations */
  uint64_t requested_total;   /* bytes asked for since creation */
  uint64_t wasted_total;      /* bytes lost to rounding since creation */
  uint64_t alignment;         /* in force */
  uint64_t limit_bytes;       /* 0: none */
  uint64_t num_segments;
} blualloc_stats;

BLUALLOC_API int32_t blualloc_get_stats(blualloc_pool* pool, blualloc_stats* out);
/* Sets both peaks to the present values. */
BLUALLOC_API int32_t blualloc_reset_peak(blualloc_pool* pool);

typedef struct blualloc_size_count {
  uint64_t bytes; /* as asked for */
  uint64_t count; /* allocations of that size since creation */
} blualloc_size_count;

/* How often each size was asked for, ascending by size. Writes at most `capacity` items and always *count, the number
 * there are (call with capacity 0 to learn it). Beyond 65536 different sizes, new ones are counted as the next power
 * of two. */
BLUALLOC_API int32_t blualloc_histogram(blualloc_pool* pool, blualloc_size_count* out, uint64_t capacity,
                                        uint64_t* count);

#define BLUALLOC_BLOCK_LIVE 0
#define BLUALLOC_BLOCK_FREE 1     /* mapped, reusable */
#define BLUALLOC_BLOCK_UNMAPPED 2 /* address space only */

typedef struct blualloc_block_info {
  void* address;
  void* stream;            /* live: allocated for; free: last used on */
  const char* tag;         /* live: the owner; else "". Valid as long as the process */
  uint64_t bytes;          /* size of the block */
  uint64_t requested;      /* live: bytes asked for; else 0 */
  uint64_t sequence;       /* live: number of the allocation in the pool, from 1; else 0 */
  uint64_t segment;        /* number of the segment, from 0 */
  uint64_t segment_offset; /* address - base of the segment: the same for the same sequence of calls */
  int32_t state;           /* BLUALLOC_BLOCK_ */
  int32_t reserved;
} blualloc_block_info;

/* All blocks by segment and address. Writes at most `capacity` items of item_size = sizeof(blualloc_block_info) and
 * always *count, the number there are. */
BLUALLOC_API int32_t blualloc_snapshot(blualloc_pool* pool, blualloc_block_info* out, uint32_t item_size,
                                       uint64_t capacity, uint64_t* count);
/* The live block that holds the address, interior pointers included. BLUALLOC_INVALID_VALUE when there is none. */
BLUALLOC_API int32_t blualloc_find_block(blualloc_pool* pool, const void* address, blualloc_block_info* out,
                                         uint32_t item_size);

#define BLUALLOC_NUM_ALIGNMENTS 4 /* the candidates: min_alignment times 1, 2, 4, 8 (64, 128, 256, 512 on the host) */

typedef struct blualloc_step_report {
  uint32_t struct_size;
  uint32_t tuned; /* 1 when this call chose the alignment */
  uint64_t step;
  uint64_t alignment_before;
  uint64_t alignment_after;
  uint64_t candidates[BLUALLOC_NUM_ALIGNMENTS];
  uint64_t wasted[BLUALLOC_NUM_ALIGNMENTS];         /* bytes that candidate would have lost in all allocations so far */
  uint64_t distinct_sizes[BLUALLOC_NUM_ALIGNMENTS]; /* different block sizes it would have left */
  uint64_t requested_total;                         /* bytes asked for so far */
  uint64_t returned_bytes;                          /* given back to the device by this call */
  uint64_t peak_live_bytes;                         /* of the step that ended */
  uint64_t reserved_bytes;                          /* after the call */
} blualloc_step_report;

/* Tells the pool that a training step ended. Every step: reports the step's own peak of live bytes (the peaks of
 * blualloc_get_stats are left alone). Step 0 in addition: chooses the alignment (the largest candidate that loses at
 * most 1/1024 of all bytes asked for more than the smallest does, and leaves fewer different sizes than the smaller
 * ones do) and trims, so that what only start-up needed goes back.
 * `report` may be NULL. */
BLUALLOC_API int32_t blualloc_end_of_step(blualloc_pool* pool, uint64_t step, blualloc_step_report* report);

/* ---- Out of memory ----------------------------------------------------------------------------------------- */

#define BLUALLOC_MAX_HOLDERS 10

typedef struct blualloc_holder {
  char tag[64]; /* cut to 63 bytes, zero-terminated */
  uint64_t bytes;
  uint64_t count; /* live blocks */
} blualloc_holder;

typedef struct blualloc_oom_info {
  uint32_t struct_size;
  uint32_t num_holders;
  uint64_t requested_bytes;
  uint64_t live_bytes;
  uint64_t cached_bytes; /* before the cache was given back in the last attempt */
  uint64_t reserved_bytes;
  uint64_t limit_bytes;                          /* 0: none */
  blualloc_holder holders[BLUALLOC_MAX_HOLDERS]; /* largest first */
  char pool_name[64];
  uint64_t
      device_free_bytes; /* after the last attempt, whoever holds the rest; 0 with device_total_bytes = 0: unknown */
  uint64_t device_total_bytes; /* since ABI 1.1, as the one before */
} blualloc_oom_info;

/* This thread's last BLUALLOC_OUT_OF_MEMORY from blualloc_allocate. BLUALLOC_INVALID_VALUE when there was none. */
BLUALLOC_API int32_t blualloc_last_oom(blualloc_oom_info* out);
/* The advice that ends out-of-memory messages, process-wide; NULL: back to the default. Copied. */
BLUALLOC_API int32_t blualloc_set_oom_hint(const char* hint);

/* ---- Hooks ------------------------------------------------------------------------------------------------- */

#define BLUALLOC_EVENT_ALLOCATE 0
#define BLUALLOC_EVENT_FREE 1
#define BLUALLOC_EVENT_MAP 2   /* address, bytes */
#define BLUALLOC_EVENT_UNMAP 3 /* address, bytes */
#define BLUALLOC_EVENT_OUT_OF_MEMORY 4

typedef struct blualloc_event {
  uint32_t struct_size;
  int32_t kind; /* BLUALLOC_EVENT_ */
  blualloc_pool* pool;
  void* address;
  void* stream;
  const char* tag;         /* valid as long as the process */
  uint64_t bytes;          /* asked for (allocate, free, out of memory), or mapped */
  uint64_t block_bytes;    /* size of the block */
  uint64_t sequence;       /* order of events within the pool: calls from several threads may arrive out of order */
  uint64_t live_bytes;     /* after the event */
  uint64_t reserved_bytes; /* after the event */
} blualloc_event;

typedef void (*blualloc_hook)(void* ctx, const blualloc_event* event);

/* Calls `hook` for every event of every pool, after the fact, outside the pool's mutex, on the thread that caused it.
 * When none is registered an allocation pays one predictable branch. A hook may use pools; events that it causes are
 * not reported. */
BLUALLOC_API int32_t blualloc_add_hook(blualloc_hook hook, void* ctx, uint64_t* id);
/* After it returns the hook is not called any more, unless it is called from within a hook. */
BLUALLOC_API int32_t blualloc_remove_hook(uint64_t id);

/* ---- Planner ----------------------------------------------------------------------------------------------- */

/* A place in the program: operation `index` (>= 0) of `lane`. Within a lane, order is the order of indices. */
typedef struct blualloc_use {
  int32_t lane;
  int32_t reserved;
  int64_t index;
} blualloc_use;

/* Operation (from_lane, from_index) is complete before (to_lane, to_index) starts. */
typedef struct blualloc_plan_event {
  int32_t from_lane;
  int32_t to_lane;
  int64_t from_index;
  int64_t to_index;
} blualloc_plan_event;

typedef struct blualloc_plan_request {
  uint32_t struct_size;
  int32_t num_lanes; /* 1 ... 64 */
  uint64_t num_buffers;
  const uint64_t* bytes;       /* [num_buffers] */
  const uint64_t* use_offsets; /* [num_buffers + 1]: buffer b has uses[use_offsets[b] ... use_offsets[b + 1]) */
  const blualloc_use* uses;    /* a buffer's first use is its first write; all others come after it, or are at it */
  uint64_t num_events;
  const blualloc_plan_event* events;
  uint64_t alignment;     /* of offsets; power of two, 0: 64 */
  uint64_t search_effort; /* placements tried by the local search; 0: chosen from the number of buffers */
} blualloc_plan_request;

typedef struct blualloc_plan_result {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t* offsets;        /* [num_buffers], the caller's: byte offsets in the arena */
  uint64_t arena_bytes;     /* a multiple of the alignment */
  uint64_t peak_live_bytes; /* lower bound for any plan: most bytes that must exist at once */
  uint64_t total_bytes;     /* sum of all buffers: the arena without sharing */
  uint64_t num_placements;  /* placements tried, heuristics and search */
  const char* heuristic;    /* the one that won, static text */
} blualloc_plan_result;

/* Packs buffers into one arena. Two buffers overlap only if every use of one happens before the first write of the
 * other, by lane order and events. Buffers of zero bytes, and buffers without uses (never live), get offset 0 and no
 * room. The result depends on the request alone. BLUALLOC_INVALID_VALUE with the buffer or event named: a lane or
 * index out of range, cyclic events, a use that is not ordered after its buffer's first write, sizes that overflow. */
BLUALLOC_API int32_t blualloc_plan(const blualloc_plan_request* request, blualloc_plan_result* result);

/* ---- PyTorch ----------------------------------------------------------------------------------------------- */

/* What torch.cuda.memory.CUDAPluggableAllocator calls (blualloc.torch.install() plugs it in): the default pools of CUDA
 * devices, tagged "torch". PyTorch expects what fails to throw, and passes exceptions on to Python: these functions
 * alone leave with a C++ exception, a std::runtime_error with the text of blualloc_last_error(). Only the free never
 * throws. An allocation on a stream that is being captured is refused: the graph would go on using it when PyTorch has
 * freed it. */
BLUALLOC_API void* blualloc_torch_malloc(ptrdiff_t bytes, int device_index, void* stream);
BLUALLOC_API void blualloc_torch_free(void* ptr, ptrdiff_t bytes, int device_index, void* stream);
/* Tensor.record_stream. */
BLUALLOC_API void blualloc_torch_record_stream(void* ptr, void* stream);
/* torch.cuda.empty_cache: of all devices that PyTorch has used. */
BLUALLOC_API void blualloc_torch_empty_cache(void);
/* torch.cuda.set_per_process_memory_fraction: the pool's limit as a part of the device's memory. */
BLUALLOC_API void blualloc_torch_set_memory_fraction(double fraction, int device_index);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BLUALLOC_BLUALLOC_H */
