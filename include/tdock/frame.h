// A batch as bytes: one format for files and connections. docs/frame.md describes it byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/buffer.h"
#include "tdock/env.h"
#include "tdock/meta_batch.h"

namespace tdock {

// Limits on what a frame may cost its reader. They are checked on writing too, so that every frame written can be read.
struct FrameLimits {
  int64_t max_rows = int64_t{1} << 32;
  size_t max_columns = 4096;
  // Of the name of a column or of a key of the meta.
  size_t max_name_bytes = 255;
  // Nesting of lists and maps, not counting the meta itself.
  int max_meta_depth = 32;
  // Everything but the columns' bytes. Reading a header takes up to about ten times its size in memory.
  size_t max_header_bytes = size_t{16} << 20;
  // Of the whole frame. For a frame that arrives in pieces, it bounds what is allocated.
  size_t max_frame_bytes = size_t{64} << 30;
  // Whether to accept blocks without checksums: only from a peer on this host, never from a file.
  bool allow_unchecked = false;
};

// Which parts of a frame are protected by checksums; the header always is.
enum class FrameChecksums {
  kBlocks,
  // For bytes that never leave the host: a reader cannot detect a damaged block.
  kNone,
};

//   | header … zeros | block … zeros | block … zeros |      each part ends at a multiple of 64 bytes
//
// The blocks share the memory of the batch, except for the offsets of a column that is a slice of another.
struct EncodedFrame {
  static constexpr size_t kAlignment = 64;

  // Includes the zeros before the first block.
  std::string header;
  // Zeros up to the next multiple of kAlignment follow each.
  std::vector<Buffer> blocks;

  // All bytes of the frame in order. They live as long as this object.
  std::vector<absl::string_view> Pieces() const;
};

// InvalidArgument, naming the column or the key, if the batch exceeds a limit or a name is not UTF-8 without control
// characters. The same batch always makes the same bytes.
absl::StatusOr<EncodedFrame> EncodeFrame(const MetaBatch& batch, const FrameLimits& limits = {},
                                         FrameChecksums checksums = FrameChecksums::kBlocks);

// The batch of a frame; it shares the memory of `frame`. Safe for any bytes: nothing is read outside of them, and no
// more is allocated than the limits allow. A frame with even one bit changed is refused, unless it has no checksums and
// the limits allow that. The memory must begin at a multiple of 8 bytes and stay unchanged while the batch lives.
// InvalidArgument for bytes that are not a frame, another version, or an exceeded limit; DataLoss for a frame that is
// truncated or damaged. The message names the byte.
absl::StatusOr<MetaBatch> DecodeFrame(const Buffer& frame, const FrameLimits& limits = {});

// One frame in a file, which is replaced atomically. Errors name the file, and are those of `env` and of the functions
// above. A loaded batch reads from the file while it lives: you may replace the file, but do not write into it.
absl::Status SaveBatch(Env& env, const std::string& path, const MetaBatch& batch, const FrameLimits& limits = {});
absl::StatusOr<MetaBatch> LoadBatch(Env& env, const std::string& path, const FrameLimits& limits = {});

}  // namespace tdock
