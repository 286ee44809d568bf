#include "text/aligned_text.h"

#include <utility>

namespace tdock::text {

AlignedText::AlignedText(absl::string_view given, TextRange range, bool wanted)
    : wanted_(wanted),
      begin_(static_cast<uint32_t>(range.begin)),
      given_(given),
      view_(given.substr(range.begin, range.end - range.begin)) {}

AlignedText AlignedText::Empty() const { return AlignedText(wanted_, begin_); }

AlignedText AlignedText::Part(TextRange range) const {
  if (!changed_) {
    const auto begin = static_cast<size_t>(view_.data() - given_.data());
    return AlignedText(given_, {begin + range.begin, begin + range.end}, wanted_);
  }
  AlignedText part = Empty();
  part.Append(*this, range);
  return part;
}

Origin AlignedText::At(size_t byte) const {
  if (changed_) return origins_[byte];
  size_t begin = byte;
  while (!BeginsUtf8Char(view_[begin])) --begin;
  size_t end = byte + 1;
  while (end < view_.size() && !BeginsUtf8Char(view_[end])) ++end;
  const auto shift = static_cast<size_t>(view_.data() - given_.data());
  return {static_cast<uint32_t>(shift + begin), static_cast<uint32_t>(shift + end)};
}

TextRange AlignedText::OriginOf(TextRange range) const { return {At(range.begin).begin, At(range.end - 1).end}; }

void AlignedText::Append(const AlignedText& from, TextRange range) {
  const absl::string_view added = from.view(range);
  text_.append(added.data(), added.size());
  if (!wanted_) return;
  if (from.changed_) {
    origins_.insert(origins_.end(), from.origins_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                    from.origins_.begin() + static_cast<std::ptrdiff_t>(range.end));
    return;
  }
  for (size_t byte = range.begin; byte < range.end; ++byte) origins_.push_back(from.At(byte));
}

void AlignedText::Append(absl::string_view text, const AlignedText& from, size_t like) {
  text_.append(text.data(), text.size());
  if (wanted_) origins_.resize(text_.size(), from.At(like));
}

void AlignedText::AppendBehind(absl::string_view text, const AlignedText& from, size_t end) {
  text_.append(text.data(), text.size());
  if (wanted_) origins_.resize(text_.size(), end > 0 ? from.At(end - 1) : Origin{from.begin_, from.begin_});
}

void AlignedText::Change(std::span<const CharChange> changes) {
  AlignedText changed = Empty();
  const absl::string_view old = view();
  size_t offset = 0;
  const auto skip = [&](size_t characters) {
    for (; characters > 0 && offset < old.size(); --characters) offset += FirstUtf8Char(old.substr(offset))->bytes;
  };
  for (const CharChange& next : changes) {
    AppendUtf8(next.code, changed.text_);
    if (!wanted_) continue;
    const bool added = next.change > 0;
    // What is added comes from where the character before it does; with nothing before it, from the beginning.
    const size_t like = added ? offset - (offset > 0 ? 1 : 0) : offset;
    Origin origin = At(like);
    if (added && offset == 0) origin.end = origin.begin;
    changed.origins_.resize(changed.text_.size(), origin);
    if (!added) skip(1 + static_cast<size_t>(-next.change));
  }
  *this = std::move(changed);
}

}  // namespace tdock::text
