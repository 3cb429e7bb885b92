/* blutrain: the native interface of the data loader.
 *
 * Plain C, stable: append only (bump MINOR), anything else bumps MAJOR. Structs that are passed by pointer start with their
 * size as the caller was compiled with it.
 *
 * Shard file ("llm.c format", also that of the modded-nanogpt data sets): 256 little-endian int32 of header (magic 20240520,
 * version 1, number of tokens, zeros), then that many little-endian uint16 tokens. Or magic 20240801, version 7 and uint32
 * tokens, for vocabularies above 65536 (llm.c's format for Llama 3).
 *
 * Legend: B = batch (rows), T = context (tokens), N = tokens of all shards in order (the stream), W = windows of an epoch.
 */
#ifndef BLUTRAIN_H
#define BLUTRAIN_H
#include <stdint.h>

#define BLUTRAIN_ABI_MAJOR 0
#define BLUTRAIN_ABI_MINOR 2

#if defined(_WIN32)
#define BLUTRAIN_API __declspec(dllexport)
#else
#define BLUTRAIN_API __attribute__((visibility("default")))
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* Status of every function that can fail; the same numbers in all packages. */
enum {
  BLUTRAIN_OK = 0,
  BLUTRAIN_INVALID_VALUE = 1,
  BLUTRAIN_OUT_OF_MEMORY = 3,
  BLUTRAIN_RUNTIME_FAILURE = 5,
  BLUTRAIN_IO_ERROR = 6,
  BLUTRAIN_INDEX_OUT_OF_RANGE = 8
};

#define BLUTRAIN_SHARD_MAGIC 20240520
#define BLUTRAIN_SHARD_VERSION 1
#define BLUTRAIN_SHARD_MAGIC_32 20240801
#define BLUTRAIN_SHARD_VERSION_32 7
#define BLUTRAIN_SHARD_HEADER_BYTES 1024
#define BLUTRAIN_IGNORED_TARGET (-100)

BLUTRAIN_API uint32_t blutrain_abi_version(void);   /* major << 16 | minor */
BLUTRAIN_API const char* blutrain_last_error(void); /* of this thread's last failed call; never NULL */

/* Checks one shard's header against its size and returns its number of tokens. Reads no token. */
BLUTRAIN_API int32_t blutrain_shard_num_tokens(const char* path, int64_t* out_num_tokens);
/* Likewise; the bytes of one token, 2 or 4. */
BLUTRAIN_API int32_t blutrain_shard_token_bytes(const char* path, int64_t* out_token_bytes);

typedef struct blutrain_loader blutrain_loader; /* opaque */

typedef struct blutrain_loader_options {
  uint32_t struct_size;
  uint32_t shuffle; /* 1: every epoch visits its windows in an order drawn from (seed, epoch) */
  /* 1: evaluation. In order, every target once; rows past the end hold token 0 and ignored targets. */
  uint32_t one_pass;
  uint32_t reserved; /* 0 */
  int64_t batch;     /* B, rows that one call fills */
  int64_t context;   /* T */
  int64_t rank;      /* this reader among `world` that share the stream */
  int64_t world;
  int64_t vocabulary; /* tokens must be smaller; the first that is not ends the call with an error */
  uint64_t seed;
} blutrain_loader_options;

typedef struct blutrain_loader_info {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t num_tokens;  /* N */
  int64_t num_windows; /* W of an epoch: (N - 1) / T, rounded up for one_pass */
  int64_t epoch;       /* of the next row of rank 0 */
  int64_t position;    /* windows of that epoch already given out, over all ranks */
  int64_t shard;       /* where the next window begins: shard number and token within it */
  int64_t offset;
} blutrain_loader_info;

/* State: exact position plus what it is only valid for. All int64:
 * [layout version = 1, epoch, position, N, T, seed, shuffle, one_pass]. */
#define BLUTRAIN_LOADER_STATE_SIZE 8

/* Maps every shard. The paths' order is the stream's order. */
BLUTRAIN_API int32_t blutrain_loader_create(const char* const* paths, int64_t num_paths,
                                            const blutrain_loader_options* options, blutrain_loader** out);
BLUTRAIN_API void blutrain_loader_destroy(blutrain_loader* loader);

/* Fills slots[0] = tokens int32 [B, T] and slots[1] = targets int32 [B, T] (the tokens that follow) with this rank's rows and
 * moves on by B * world windows. Row b is window position + rank * B + b of the epoch, so a global batch holds the same
 * windows whatever its split into micro-batches and ranks. A window may cross shards; after the last window of an epoch the
 * next one begins, within a batch too. On failure nothing moves. Not for concurrent use of one loader.
 * `loader` is void* so that the function can be handed to native callers as `int32_t (*)(void*, void* const*, int32_t)`. */
BLUTRAIN_API int32_t blutrain_loader_next(void* loader, void* const* slots, int32_t num_slots);

/* The message of this loader's last failed call, for callers on another thread; never NULL. */
BLUTRAIN_API const char* blutrain_loader_error(const blutrain_loader* loader);

BLUTRAIN_API int32_t blutrain_loader_get_info(const blutrain_loader* loader, blutrain_loader_info* inout_info);
BLUTRAIN_API int32_t blutrain_loader_get_state(const blutrain_loader* loader, int64_t* out_state, int64_t size);
/* Refuses a state that belongs to another stream, context, seed or order. Batch, rank and world may differ. */
BLUTRAIN_API int32_t blutrain_loader_set_state(blutrain_loader* loader, const int64_t* state, int64_t size);

#ifdef __cplusplus
}
#endif
#endif
