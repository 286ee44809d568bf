#include "text/added_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/json_fields.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

bool StandsAlone(absl::string_view text, TextRange range) {
  const absl::string_view before = text.substr(0, range.begin), behind = text.substr(range.end);
  return (before.empty() || !IsWordChar(LastUtf8Char(before).code)) &&
         (behind.empty() || !IsWordChar(FirstUtf8Char(behind)->code));
}

// No further than `earliest`.
size_t BeginOfWhiteSpaceBefore(absl::string_view text, size_t begin, size_t earliest) {
  while (begin > earliest) {
    const Utf8Char last = LastUtf8Char(text.substr(0, begin));
    if (!IsWhiteSpace(last.code)) break;
    begin -= last.bytes;
  }
  return begin;
}

size_t EndOfWhiteSpaceBehind(absl::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Char next = *FirstUtf8Char(text.substr(end));
    if (!IsWhiteSpace(next.code)) break;
    end += next.bytes;
  }
  return end;
}

// Real tokenizers have tens of thousands.
constexpr size_t kMaxNodes = size_t{1} << 23;

uint64_t EdgeKey(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<unsigned char>(byte); }

absl::StatusOr<AddedToken> ReadAddedToken(const Json& json) {
  JsonFields fields(json, "an added token");
  AddedToken token;
  TDOCK_ASSIGN_OR_RETURN(token.content, fields.String("content"));
  if (token.content.empty()) return fields.Damaged("content", "text that is not empty");
  if (token.content.size() > kMaxAddedTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the added token ", ShownJson(Json(token.content)), " has ",
                                                   token.content.size(), " bytes; at most ", kMaxAddedTokenBytes,
                                                   " are taken"));
  }
  JsonFields named(json, absl::StrCat("the added token ", ShownJson(Json(token.content))));
  named.Get("content");
  TDOCK_ASSIGN_OR_RETURN(token.id, named.Int("id"));
  TDOCK_ASSIGN_OR_RETURN(token.special, named.Bool("special"));
  TDOCK_ASSIGN_OR_RETURN(token.normalized, named.Bool("normalized"));
  TDOCK_ASSIGN_OR_RETURN(token.single_word, named.Bool("single_word"));
  TDOCK_ASSIGN_OR_RETURN(token.lstrip, named.Bool("lstrip"));
  TDOCK_ASSIGN_OR_RETURN(token.rstrip, named.Bool("rstrip"));
  TDOCK_RETURN_IF_ERROR(named.Finish());
  return token;
}

}  // namespace

absl::Status AddedTokenFinder::Add(absl::string_view pattern, const AddedToken& token) {
  if (pattern.size() > kMaxNodes - tokens_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the added tokens up to ", Quoted(token.content), " have more than ", kMaxNodes,
                     " bytes together, as they are looked for in a text; that is the limit"));
  }
  uint32_t node = 0;
  for (const char byte : pattern) {
    uint32_t next = Next(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(tokens_.size());
      tokens_.push_back(nullptr);
      (node == 0 ? first_[static_cast<unsigned char>(byte)] : next_[EdgeKey(node, byte)]) = next;
    }
    node = next;
  }
  if (tokens_[node] == nullptr) tokens_[node] = &token;
  return absl::OkStatus();
}

uint32_t AddedTokenFinder::Next(uint32_t node, char byte) const {
  if (node == 0) return first_[static_cast<unsigned char>(byte)];
  const auto found = next_.find(EdgeKey(node, byte));
  return found == next_.end() ? 0 : found->second;
}

AddedTokenFinder::Found AddedTokenFinder::LongestAt(absl::string_view rest) const {
  Found found;
  uint32_t node = 0;
  while (found.looked < rest.size() && (node = Next(node, rest[found.looked])) != 0) {
    ++found.looked;
    if (tokens_[node] == nullptr) continue;
    found.token = tokens_[node];
    found.size = found.looked;
  }
  return found;
}

SpecialsAsText::Covered SpecialsAsText::Covers(TextRange range) const {
  if (everywhere_) return Covered::kWholly;
  // The first one that ends behind the beginning of `range`.
  const auto found = std::upper_bound(ranges_.begin(), ranges_.end(), range.begin,
                                      [](size_t begin, const TextRange& plain) { return begin < plain.end; });
  if (found == ranges_.end() || found->begin >= range.end) return Covered::kNot;
  return found->begin <= range.begin && found->end >= range.end ? Covered::kWholly : Covered::kPartly;
}

absl::StatusOr<std::vector<AddedTokenFinder::Part>> AddedTokenFinder::Divide(
    absl::string_view text, absl::FunctionRef<SpecialsAsText::Covered(TextRange)> covered, EncodeBudget& budget) const {
  constexpr size_t kBytesBetweenPolls = 4096;
  std::vector<Part> parts;
  size_t done = 0;
  TextRange blanks;  // the white space that was last looked through
  for (size_t at = 0; at < text.size() && !empty();) {
    const auto [token, size, looked] = LongestAt(text.substr(at));
    if (looked > 0 || at % kBytesBetweenPolls == 0)
      TDOCK_RETURN_IF_ERROR(budget.Spend(looked > 0 ? 1 + looked : kBytesBetweenPolls));
    if (token == nullptr) {
      ++at;
      continue;
    }
    TextRange range{at, at + size};
    const SpecialsAsText::Covered as_text = token->special ? covered(range) : SpecialsAsText::Covered::kNot;
    // A special token may begin within what is text only in part.
    if (as_text == SpecialsAsText::Covered::kPartly) {
      ++at;
      continue;
    }
    at = range.end;
    // Like in `tokenizers`, a token that does not count hides those that begin within it.
    if (as_text == SpecialsAsText::Covered::kWholly) continue;
    if (token->single_word && !StandsAlone(text, range)) continue;
    if (token->lstrip) range.begin = BeginOfWhiteSpaceBefore(text, range.begin, done);
    // Another token may still begin in the white space behind this one; the two then overlap.
    if (token->rstrip) {
      if (range.end < blanks.begin || range.end > blanks.end) {
        blanks = {range.end, EndOfWhiteSpaceBehind(text, range.end)};
      }
      range.end = blanks.end;
    }
    if (done < range.begin) parts.push_back({{done, range.begin}, nullptr});
    parts.push_back({range, token});
    done = range.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const Json& json, const std::function<std::optional<int32_t>(absl::string_view)>& model_id, size_t model_size) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) return tokens;
  if (!json.is_array()) return absl::InvalidArgumentError("\"added_tokens\" is not a list");
  absl::flat_hash_map<std::string, int32_t> seen;
  auto next = static_cast<int32_t>(model_size);
  for (const Json& item : json) {
    TDOCK_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(item));
    const std::string shown = ShownJson(Json(token.content));
    const int32_t wanted = model_id(token.content).value_or(next);
    if (token.id != wanted) {
      return absl::InvalidArgumentError(absl::StrCat("the id of the added token ", shown, " is ", token.id, ", not ",
                                                     wanted, ", which its place in the vocabulary gives it"));
    }
    if (!seen.emplace(token.content, token.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("the added token ", shown, " comes twice"));
    }
    next = std::max(next, token.id + 1);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace tdock::text
