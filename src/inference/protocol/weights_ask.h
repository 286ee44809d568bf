// What a client asks of the weights that are served.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/problem.h"
#include "tdock/dtype.h"

namespace tdock::inference {

// Every reader of JSON has it exactly.
inline constexpr int64_t kMostVersion = (int64_t{1} << 53) - 1;

// A weight that a client will send, under its name in a folder of Hugging Face's.
struct TensorAsk {
  std::string name = {};
  DType dtype = DType::kF32;  // kF32, kBF16 or kF16
  std::vector<int64_t> shape = {};
};

// A body without a query: the weights of a folder, or an upload that begins.
struct WeightsAsk {
  std::string folder = {};              // "model_path"; empty: an upload
  std::vector<TensorAsk> tensors = {};  // of an upload, in the order in which their bytes come
  std::optional<int64_t> version = {};  // "weight_version", a number or a string of digits; absent: the next one
  bool flush_cache = true;              // answers in progress are read again
};
std::variant<WeightsAsk, Problem> ReadWeights(absl::string_view body, const AskLimits& limits = {});

// A query: a piece of an upload, or its end.
struct UploadAsk {
  std::string upload = {};
  std::optional<uint64_t> offset = {};    // where the piece begins; or else
  std::optional<uint64_t> checksum = {};  // of all bytes
  std::optional<bool> flush_cache = {};   // of the end; absent: what the upload began with
};
std::variant<UploadAsk, Problem> ReadUpload(absl::string_view query);

}  // namespace tdock::inference
