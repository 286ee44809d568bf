#include "text/pre_tokenizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/regex.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

// The expression of GPT-2's encoder, which is ByteLevel's own.
constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// What becomes of the delimiters that a text is split at.
enum class Delimiter { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Cut {
  TextRange range;
  bool is_match;
};

// All of a text of `size` bytes: the matches and what lies between them.
std::vector<Cut> CutAt(const std::vector<TextRange>& matches, size_t size, bool invert) {
  std::vector<Cut> cuts;
  size_t done = 0;
  for (const TextRange match : matches) {
    if (match.begin > done) cuts.push_back({{done, match.begin}, invert});
    cuts.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) cuts.push_back({{done, size}, invert});
  return cuts;
}

// Joins a cut to the one before it where `joins` says so of (the flag before, this flag).
template <class Joins>
std::vector<Cut> Joined(const std::vector<Cut>& cuts, Joins&& joins) {
  std::vector<Cut> joined;
  bool before = false;
  for (const Cut& cut : cuts) {
    if (!joined.empty() && joins(before, cut.is_match)) {
      joined.back().range.end = cut.range.end;
    } else {
      joined.push_back(cut);
    }
    before = cut.is_match;
  }
  return joined;
}

std::vector<Cut> JoinedWithNext(std::vector<Cut> cuts) {
  std::vector<Cut> joined;
  bool behind = false;
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    if (cut->is_match && !behind && !joined.empty()) {
      joined.back().range.begin = cut->range.begin;
    } else {
      joined.push_back(*cut);
    }
    behind = cut->is_match;
  }
  std::reverse(joined.begin(), joined.end());
  return joined;
}

std::vector<Cut> Arranged(std::vector<Cut> cuts, Delimiter delimiter) {
  switch (delimiter) {
    case Delimiter::kIsolated:
      break;
    case Delimiter::kRemoved:
      std::erase_if(cuts, [](const Cut& cut) { return cut.is_match; });
      break;
    case Delimiter::kContiguous:
      return Joined(cuts, [](bool before, bool now) { return before == now; });
    case Delimiter::kMergedWithPrevious:
      return Joined(cuts, [](bool before, bool now) { return now && !before; });
    case Delimiter::kMergedWithNext:
      return JoinedWithNext(std::move(cuts));
  }
  return cuts;
}

class Split final : public PreTokenizer::Step {
 public:
  Split(Regex pattern, Delimiter delimiter, bool invert)
      : pattern_(std::move(pattern)), delimiter_(delimiter), invert_(invert) {}

  absl::Status Apply(Pieces& pieces, EncodeBudget& budget, size_t max_pieces) const override {
    std::vector<TextRange> ranges;
    for (const TextRange piece : pieces.ranges) {
      const absl::string_view text = pieces.text.view(piece);
      TDOCK_RETURN_IF_ERROR(budget.Spend(text.size()));
      const size_t max_matches = keeps_matches_apart() ? max_pieces - ranges.size() : kNoLimit;
      TDOCK_ASSIGN_OR_RETURN(const std::vector<TextRange> matches, pattern_.FindAll(text, budget, max_matches));
      for (const Cut& cut : Arranged(CutAt(matches, text.size(), invert_), delimiter_)) {
        if (cut.range.begin == cut.range.end) continue;
        ranges.push_back({piece.begin + cut.range.begin, piece.begin + cut.range.end});
      }
      if (ranges.size() > max_pieces) return budget.TooManyTokens();
    }
    pieces.ranges = std::move(ranges);
    return absl::OkStatus();
  }

  bool drops() const override { return delimiter_ == Delimiter::kRemoved; }

 private:
  // True if each match is in exactly one piece, and no piece has two.
  bool keeps_matches_apart() const {
    return delimiter_ != Delimiter::kContiguous && (delimiter_ != Delimiter::kRemoved || invert_);
  }

  const Regex pattern_;
  const Delimiter delimiter_;
  const bool invert_;
};

// Puts a space before each piece that does not begin with one.
class PrefixSpace final : public PreTokenizer::Step {
 public:
  absl::Status Apply(Pieces& pieces, EncodeBudget& budget, size_t /*max_pieces*/) const override {
    AlignedText changed = pieces.text.Empty();
    for (TextRange& piece : pieces.ranges) {
      const size_t begin = changed.size(), size = piece.end - piece.begin;
      TDOCK_RETURN_IF_ERROR(budget.Spend(size));
      TDOCK_RETURN_IF_ERROR(budget.CheckGrowth(begin + size + 1, "the pre-tokenizer ByteLevel"));
      if (!absl::StartsWith(pieces.text.view(piece), " ")) changed.Append(" ", pieces.text, piece.begin);
      changed.Append(pieces.text, piece);
      piece = {begin, changed.size()};
    }
    pieces.text = std::move(changed);
    return absl::OkStatus();
  }
};

enum class PrependScheme { kAlways, kFirst, kNever };

// Puts `replacement` in the place of spaces, and before pieces. `kFirst`: only the piece that begins the text.
class Metaspace final : public PreTokenizer::Step {
 public:
  Metaspace(std::string replacement, PrependScheme scheme) : replacement_(std::move(replacement)), scheme_(scheme) {}

  absl::Status Apply(Pieces& pieces, EncodeBudget& budget, size_t /*max_pieces*/) const override {
    AlignedText changed = pieces.text.Empty();
    for (TextRange& piece : pieces.ranges) {
      const size_t begin = changed.size();
      TDOCK_RETURN_IF_ERROR(CheckPiece(pieces.text.view(piece), begin, budget));
      const absl::string_view text = pieces.text.view(piece);
      const bool has_one = absl::StartsWith(text, " ") || absl::StartsWith(text, replacement_);
      if (!has_one && Prepends(pieces.text, piece)) changed.Append(replacement_, pieces.text, piece.begin);
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t space = std::min(pieces.text.view().find(' ', at), piece.end);
        changed.Append(pieces.text, {at, space});
        if (space < piece.end) changed.Append(replacement_, pieces.text, space);
        at = space + 1;
      }
      piece = {begin, changed.size()};
    }
    pieces.text = std::move(changed);
    return absl::OkStatus();
  }

 private:
  // Checks whether `text` may come behind `before` bytes, with a replacement before it and in place of each space.
  absl::Status CheckPiece(absl::string_view text, size_t before, EncodeBudget& budget) const {
    TDOCK_RETURN_IF_ERROR(budget.Spend(text.size()));
    const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
    return budget.CheckGrowth(before + text.size() + (1 + spaces) * replacement_.size(), "the pre-tokenizer Metaspace");
  }

  bool Prepends(const AlignedText& text, TextRange piece) const {
    if (scheme_ != PrependScheme::kFirst) return scheme_ == PrependScheme::kAlways;
    return text.OriginOf(piece).begin == 0;
  }

  const std::string replacement_;
  const PrependScheme scheme_;
};

template <class Value>
std::optional<Value> Named(const Json& json, std::initializer_list<std::pair<const char*, Value>> names) {
  for (const auto& [name, value] : names) {
    if (json == name) return value;
  }
  return std::nullopt;
}

}  // namespace

absl::Status PreTokenizer::AddSplit(JsonFields& fields) {
  TDOCK_ASSIGN_OR_RETURN(Regex pattern, ReadPattern(fields));
  TDOCK_ASSIGN_OR_RETURN(const bool invert, fields.Bool("invert"));
  const auto delimiter =
      Named<Delimiter>(fields.Get("behavior"), {{"Removed", Delimiter::kRemoved},
                                                {"Isolated", Delimiter::kIsolated},
                                                {"MergedWithPrevious", Delimiter::kMergedWithPrevious},
                                                {"MergedWithNext", Delimiter::kMergedWithNext},
                                                {"Contiguous", Delimiter::kContiguous}});
  if (!delimiter) {
    return fields.Unsupported("behavior",
                              "only Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous are");
  }
  steps_.push_back(std::make_shared<Split>(std::move(pattern), *delimiter, invert));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddByteLevel(JsonFields& fields) {
  TDOCK_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.Bool("add_prefix_space"));
  TDOCK_RETURN_IF_ERROR(fields.Bool("trim_offsets").status());  // is for its other use, as a post-processor
  TDOCK_ASSIGN_OR_RETURN(const bool use_regex, fields.BoolOr("use_regex", true));
  if (add_prefix_space) steps_.push_back(std::make_shared<PrefixSpace>());
  if (use_regex) {
    TDOCK_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile(kGpt2Pattern));
    steps_.push_back(std::make_shared<Split>(std::move(pattern), Delimiter::kIsolated, false));
  }
  byte_level_ = true;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(JsonFields& fields) {
  TDOCK_ASSIGN_OR_RETURN(const std::string replacement, fields.String("replacement"));
  const std::optional<Utf8Char> one = FirstUtf8Char(replacement);
  if (!one || one->bytes != replacement.size()) return fields.Damaged("replacement", "one character");
  TDOCK_ASSIGN_OR_RETURN(const bool split, fields.BoolOr("split", true));
  // Older files say the same with "add_prefix_space", and repeat the replacement in "str_rep".
  fields.Get("str_rep");
  TDOCK_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.BoolOr("add_prefix_space", true));
  auto scheme = add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  if (!fields.Get("prepend_scheme").is_null()) {
    const auto named = Named<PrependScheme>(
        fields.Get("prepend_scheme"),
        {{"always", PrependScheme::kAlways}, {"first", PrependScheme::kFirst}, {"never", PrependScheme::kNever}});
    if (!named) return fields.Unsupported("prepend_scheme", "only always, first and never are");
    scheme = *named;
    if (scheme != PrependScheme::kNever && !add_prefix_space) {
      return fields.Damaged("add_prefix_space", "true, as \"prepend_scheme\" says");
    }
  }
  needs_origins_ |= scheme == PrependScheme::kFirst;
  steps_.push_back(std::make_shared<Metaspace>(replacement, scheme));
  if (split) {
    TDOCK_ASSIGN_OR_RETURN(Regex pattern, Regex::Literal(replacement));
    steps_.push_back(std::make_shared<Split>(std::move(pattern), Delimiter::kMergedWithNext, false));
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::Add(const Json& json) {
  if (++components_ > kMaxComponents) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pre-tokenizer is a sequence of more than ", kMaxComponents, " components, the limit"));
  }
  JsonFields untyped(json, "the pre-tokenizer");
  TDOCK_ASSIGN_OR_RETURN(const std::string type, untyped.String("type"));
  JsonFields fields(json, absl::StrCat("the pre-tokenizer ", type));
  fields.Get("type");
  if (byte_level_) return fields.Unsupported("type", "behind ByteLevel, which must be the last of its sequence");
  if (type == "Sequence") {
    const Json& parts = fields.Get("pretokenizers");
    if (!parts.is_array()) return fields.Damaged("pretokenizers", "a list");
    for (const Json& part : parts) TDOCK_RETURN_IF_ERROR(Add(part));
  } else if (type == "Split") {
    TDOCK_RETURN_IF_ERROR(AddSplit(fields));
  } else if (type == "ByteLevel") {
    TDOCK_RETURN_IF_ERROR(AddByteLevel(fields));
  } else if (type == "Metaspace") {
    TDOCK_RETURN_IF_ERROR(AddMetaspace(fields));
  } else if (type == "Digits") {
    TDOCK_ASSIGN_OR_RETURN(const bool individual, fields.Bool("individual_digits"));
    TDOCK_ASSIGN_OR_RETURN(Regex pattern, Regex::Compile("\\p{N}"));
    const Delimiter delimiter = individual ? Delimiter::kIsolated : Delimiter::kContiguous;
    steps_.push_back(std::make_shared<Split>(std::move(pattern), delimiter, false));
  } else {
    return fields.Unsupported("type", "only ByteLevel, Digits, Metaspace, Split and Sequence are");
  }
  return fields.Finish();
}

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const Json& json) {
  PreTokenizer made;
  if (!json.is_null()) TDOCK_RETURN_IF_ERROR(made.Add(json));
  return made;
}

bool PreTokenizer::drops() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->drops(); });
}

absl::StatusOr<Pieces> PreTokenizer::Apply(AlignedText text, EncodeBudget& budget, size_t max_tokens) const {
  Pieces pieces{std::move(text), {}};
  if (pieces.text.size() > 0) pieces.ranges.push_back({0, pieces.text.size()});
  // Pieces only count where no later step may leave them out.
  const auto last_drop = std::find_if(steps_.rbegin(), steps_.rend(), [](const auto& step) { return step->drops(); });
  const auto certain = last_drop == steps_.rend() ? size_t{0} : static_cast<size_t>(steps_.rend() - last_drop) - 1;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const size_t max_pieces = i < certain ? kNoLimit : max_tokens;
    TDOCK_RETURN_IF_ERROR(steps_[i]->Apply(pieces, budget, max_pieces));
  }
  return pieces;
}

}  // namespace tdock::text
