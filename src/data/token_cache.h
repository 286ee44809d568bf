// Encoded samples in a file, so that they are encoded only once.
//
// The file is named after a hash of everything that determines the samples: the records' bytes, the adapter, the
// tokenizer's files, the template and the encoding. If any of them changes, another file is used. It is written to a
// temporary file and renamed, so that it is either complete or absent, and is verified as a whole when it is opened.
//
//   offset        0  "TDTOKENS", u32 version (4), u32 0, u64 hash (high), u64 hash (low)               32 bytes
//                32  the samples, one after another:
//                      u32 ids, u32 loss masks (0, or as many), u32 rejected ids, u32 flags            16 bytes
//                      f64 label (where flag 2 is set; else 0)                                          8 bytes
//                      u32 prompt tokens (at most as many as ids), u32 texts (n, at least 3)            8 bytes
//                      i32 for each id, i32 for each rejected id, u8 for each loss mask
//                      n texts: u32 bytes, UTF-8: the prompt, the truth, the source, where flag 4 is set the
//                      messages of the prompt, what is kept
//                      zeros up to a multiple of 8
//          o_0 … o_n  u64 for each sample where it begins, and where the last one ends
//   end - 72 bytes  u64 samples (n), i64 counts: samples, bad, incomplete, overlong, truncated
//   end - 24 bytes  u64 XXH3-128 (high), u64 (low) of all before it, "TDTOKEND"
//
// Numbers are little-endian. Flags: 1 truncated, 2 has a label, 4 has messages (then n is at least 4), 8 rewritten,
// 16 of the record of the sample before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "data/encode.h"
#include "data/loader.h"
#include "data/source.h"

namespace tdock::data {

// Thread-safe. Memory use is 8 bytes per sample.
class TokenCache final : public Source<EncodedSample> {
 public:
  // DataLoss, with what is wrong, for a file that is incomplete, or one for other samples than `content`.
  static absl::StatusOr<std::unique_ptr<TokenCache>> Open(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                          const text::ContentHash& content);

  int64_t size() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override;
  // Reads the sample's flags. A record whose first sample was left out counts as one with the record before it.
  bool BeginsRecord(int64_t index) const override;
  text::ContentHash content() const override { return content_; }

  // The counts from when the samples were encoded.
  const LoaderCounts& counts() const { return counts_; }

 private:
  TokenCache(std::unique_ptr<ReadableFile> file, std::string name, const text::ContentHash& content)
      : file_(std::move(file)), name_(std::move(name)), content_(content) {}

  absl::Status CheckChecksum() const;
  absl::Status ReadEnds();

  const std::unique_ptr<ReadableFile> file_;
  const std::string name_;
  const text::ContentHash content_;
  LoaderCounts counts_;
  std::vector<uint64_t> begins_;
};

struct CacheOptions {
  std::string folder;                                                            // created if it does not exist
  int workers = 0;                                                               // threads that encode
  bool skip_bad_records = false;                                                 // determines the samples
  std::function<void(const absl::Status&)> report = [](const absl::Status&) {};  // of bad records that are skipped
  std::function<void(const std::string&)> log = [](const std::string&) {};       // one line
};

// The encoded samples that `source` would give, from the cache; null if there is no file, or a corrupt one, which is
// logged. Only the content of the source is looked at.
absl::StatusOr<std::unique_ptr<TokenCache>> OpenCache(Env& env, const Source<EncodedSample>& source,
                                                      const CacheOptions& options);

// The same from a new file. Errors are those of encoding and writing; FailedPrecondition if no record yields a sample.
absl::StatusOr<std::unique_ptr<TokenCache>> BuildCache(Env& env, const Source<EncodedSample>& source,
                                                       const CacheOptions& options);

}  // namespace tdock::data
