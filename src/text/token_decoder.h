// The "decoder" of a tokenizer.json: how tokens are turned back into text. Internal to this module.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"

namespace tdock::text {

// Immutable, and so thread-safe.
class TokenDecoder {
 public:
  // The processing of one sequence of tokens as they arrive. Not thread-safe.
  //
  //   tokens ──► stage ──► stage ──► … ──► text
  //
  // A stage gets tokens in parts: it may pass on the first part of a token before the rest has arrived, because stages
  // such as Fuse make one endless token of all.
  class Stage {
   public:
    virtual ~Stage() = default;
    // `begins`: the part is the first of a token.
    virtual void Push(absl::string_view part, bool begins) = 0;
    // The end of the sequence. The stage, and those after it, are reset.
    virtual void End() = 0;
  };

  // Supports ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip and Sequence, and null, with which tokens are
  // joined by spaces. Any other component or field value is Unimplemented, with its name. InvalidArgument for more than
  // kMaxComponents, and for components that together may make more than EncodeBudget::kMaxGrowth bytes of one.
  static absl::StatusOr<TokenDecoder> Read(const nlohmann::json& json);

  // The first stage. Text is appended to `text`, which must outlive the stages.
  std::unique_ptr<Stage> Begin(std::string& text) const;

 private:
  // Makes a stage that passes its output to `next`.
  class Maker {
   public:
    virtual ~Maker() = default;
    virtual std::unique_ptr<Stage> Make(std::unique_ptr<Stage> next) const = 0;
  };
  template <class Made, class... Parameters>
  class MakerOf;

  absl::Status Add(const nlohmann::json& json);
  absl::Status Grow(double factor, const std::string& where);
  absl::Status AddOfType(const std::string& type, class JsonFields& fields);
  template <class Made, class... Parameters>
  void AddStage(Parameters... parameters);

  std::vector<std::shared_ptr<const Maker>> makers_;
  // While it is read.
  bool fused_ = false;  // whether tokens arrive as one
  size_t components_ = 0;
  double growth_ = 1;  // how many bytes become of one, at most
};

}  // namespace tdock::text
