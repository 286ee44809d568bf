// A text that is being changed on its way to the tokens, and where each of its bytes comes from. Internal to this
// module.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tdock::text {

// Bytes [begin, end) of the text that was given. It has at most kMaxTextBytes, so 32 bits suffice.
struct Origin {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// UTF-8. As long as nothing is changed it is a view of the given text, which must outlive it.
class AlignedText {
 public:
  // The part `range` of `given`, whose borders are those of characters. Origins are only kept where they are `wanted`;
  // without, OriginOf() must not be called.
  AlignedText(absl::string_view given, TextRange range, bool wanted);

  // Part `range` of this.
  AlignedText Part(TextRange range) const;
  // Nothing yet, to be built by Append() from parts of this.
  AlignedText Empty() const;

  absl::string_view view() const { return changed_ ? absl::string_view(text_) : view_; }
  absl::string_view view(TextRange range) const { return view().substr(range.begin, range.end - range.begin); }
  size_t size() const { return view().size(); }

  // From where the first of these bytes comes to where the last one does, in whole characters. Not for an empty range.
  TextRange OriginOf(TextRange range) const;

  void Append(const AlignedText& from, TextRange range);
  // New text, which counts as coming from where byte `like` of `from` does.
  void Append(absl::string_view text, const AlignedText& from, size_t like);
  // The same, like the byte before `end`; with none before it, as an empty place at the beginning.
  void AppendBehind(absl::string_view text, const AlignedText& from, size_t end);

  // The whole text, changed: `changes` tells of each character what it replaces.
  void Change(std::span<const CharChange> changes);

 private:
  AlignedText(bool wanted, uint32_t begin) : wanted_(wanted), changed_(true), begin_(begin) {}

  Origin At(size_t byte) const;

  bool wanted_;
  bool changed_ = false;
  uint32_t begin_;                  // in the given text, of the part that this was made from
  absl::string_view given_, view_;  // before anything is changed
  std::string text_;                // from then on
  std::vector<Origin> origins_;     // of each byte of text_
};

}  // namespace tdock::text
