// libsentencepiece behind a few calls. Its header puts std::string_view into the namespace absl, where Abseil has a
// type of that name, so that no source can include both: this header and its source know nothing of Abseil. Internal to
// this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tdock::text {

// Immutable, and so thread-safe.
class SentencePieceModel {
 public:
  struct Piece {
    int32_t id;
    size_t begin, end;  // bytes of the text
  };
  enum class Kind { kNormal, kUnknown, kControl, kByte, kUnused };

  ~SentencePieceModel();

  // Null, with the reason, for a model that the library refuses. It trusts much of what it reads: check first
  // (sentencepiece_check.h).
  static std::unique_ptr<SentencePieceModel> Load(std::string_view bytes, std::string& error);

  // `text` is UTF-8. Nothing, with the reason, where the library fails.
  std::optional<std::vector<int>> Encode(std::string_view text, std::string& error) const;
  std::optional<std::vector<Piece>> EncodeWithRanges(std::string_view text, std::string& error) const;

  int32_t size() const;
  // For ids below size().
  std::string Text(int32_t id) const;
  Kind KindOf(int32_t id) const;
  // -1 where the model has none.
  int32_t bos_id() const;
  int32_t eos_id() const;
  int32_t pad_id() const;

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);

  const std::unique_ptr<Library> library_;
};

}  // namespace tdock::text
