#include "trainer/preflight/rendering.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/loop/feed.h"
#include "trainer/preflight/grouped.h"

namespace tdock::trainer {
namespace {

constexpr absl::string_view kOpen = "⟦", kClose = "⟧";

// Consecutive tokens that are all trained on, or not.
struct SamplePart {
  std::string text;
  bool trained = false;
};

absl::StatusOr<std::vector<SamplePart>> PartsOfSample(const text::Tokenizer& tokenizer,
                                                      const data::EncodedSample& sample) {
  const std::unique_ptr<text::StreamDecoder> decoder = tokenizer.MakeStreamDecoder(text::SpecialTokens::kKeep);
  const size_t prompt = sample.loss_mask.empty() ? sample.ids.size() : PromptLength(sample);
  std::vector<SamplePart> parts;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    const bool trained = i >= prompt && sample.loss_mask[i] != 0;
    if (parts.empty() || parts.back().trained != trained) parts.push_back({"", trained});
    TDOCK_ASSIGN_OR_RETURN(const std::string text, decoder->Push(sample.ids[i]));
    parts.back().text += text;
  }
  if (!parts.empty()) parts.back().text += decoder->Finish();
  return parts;
}

// Not beyond `begin`, and where a character begins.
size_t CharacterBegin(absl::string_view text, size_t begin) {
  while (begin > 0 && begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

std::string Escaped(absl::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  std::string escaped;
  for (absl::string_view rest = valid; !rest.empty();) {
    const Utf8Char next = *FirstUtf8Char(rest);
    const absl::string_view bytes = rest.substr(0, next.bytes);
    rest.remove_prefix(next.bytes);
    if (next.code == '\n') {
      escaped += "\\n\n";
    } else if (next.code == '\t') {
      escaped += "\\t";
    } else if (IsUnprintable(next.code) || bytes == kOpen || bytes == kClose) {
      absl::StrAppendFormat(&escaped, "\\u%04x", static_cast<uint32_t>(next.code));
    } else {
      absl::StrAppend(&escaped, bytes);
    }
  }
  return escaped;
}

}  // namespace

std::string RenderText(absl::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return Escaped(text);
  const size_t half = most_bytes / 2;
  const size_t head = CharacterBegin(text, half), tail = CharacterBegin(text, text.size() - half);
  return absl::StrCat(Escaped(text.substr(0, head)), " […", Grouped(static_cast<int64_t>(tail - head)), " bytes…] ",
                      Escaped(text.substr(tail)));
}

absl::StatusOr<std::string> RenderSample(const text::Tokenizer& tokenizer, const data::EncodedSample& sample,
                                         const RenderingOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<SamplePart> parts, PartsOfSample(tokenizer, sample));
  std::string rendered;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t half = options.most_parts / 2;
    if (parts.size() > options.most_parts && i >= half && i < parts.size() - half) {
      if (i == half) absl::StrAppend(&rendered, " […", parts.size() - 2 * half, " parts…] ");
      continue;
    }
    const std::string text = RenderText(parts[i].text, options.most_bytes);
    if (!parts[i].trained) {
      rendered += text;
    } else if (options.terminal) {
      absl::StrAppend(&rendered, "\x1b[7m", text, "\x1b[27m");
    } else {
      absl::StrAppend(&rendered, kOpen, text, kClose);
    }
  }
  return rendered;
}

}  // namespace tdock::trainer
