// The "decoder" of a tokenizer.json: how tokens become text again. Internal to this module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tdock::text {

// Immutable, and so thread-safe.
class TokenDecoder {
 public:
  // What becomes of one sequence of tokens as they come. Not thread-safe.
  //
  //   tokens ──► stage ──► stage ──► … ──► text
  //
  // A stage is handed tokens in parts: a token may still be going on when the first of it is given on, because stages
  // such as Fuse make one endless token of all.
  class Stage {
   public:
    virtual ~Stage() = default;
    // `begins`: the part is the first of a token.
    virtual void Push(absl::string_view part, bool begins) = 0;
    // There is no more. The stage, and those behind it, begin anew.
    virtual void End() = 0;
  };

  // Takes ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip and Sequence, and null, with which tokens are put
  // together with spaces between. Another component, or a field with another value, is Unimplemented, named.
  static absl::StatusOr<TokenDecoder> Read(const nlohmann::json& json);

  // The first stage. Text is appended to `text`, which must outlive the stages.
  std::unique_ptr<Stage> Begin(std::string& text) const;

 private:
  // Makes a stage that gives on to `next`.
  class Maker {
   public:
    virtual ~Maker() = default;
    virtual std::unique_ptr<Stage> Make(std::unique_ptr<Stage> next) const = 0;
  };
  template <class Made, class... Parameters>
  class MakerOf;

  absl::Status Add(const nlohmann::json& json);
  absl::Status AddOfType(const std::string& type, class JsonFields& fields);
  template <class Made, class... Parameters>
  void AddStage(Parameters... parameters);

  std::vector<std::shared_ptr<const Maker>> makers_;
  bool fused_ = false;  // while it is read: whether tokens arrive as one
};

}  // namespace tdock::text
