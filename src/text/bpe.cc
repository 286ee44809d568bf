#include "text/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/json_fields.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

constexpr char kWhere[] = "the model BPE";
constexpr int64_t kMaxTokens = 1 << 24;
// Ids without a token take memory, too: so many more of them than tokens there may be.
constexpr int64_t kMaxHoles = 1 << 16;
// Words up to here are merged by looking for the best pair each time, which is faster than a queue then.
constexpr size_t kShortWord = 48;
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr bool IsPrintable(size_t byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD); }

// Printable bytes are the characters of Latin-1; the others are those from U+0100 on, in their order.
constexpr std::array<char32_t, 256> MakeByteLevelChars() {
  std::array<char32_t, 256> chars = {};
  char32_t next = 256;
  for (size_t byte = 0; byte < 256; ++byte) chars[byte] = IsPrintable(byte) ? static_cast<char32_t>(byte) : next++;
  return chars;
}
constexpr std::array<char32_t, 256> kByteLevelChars = MakeByteLevelChars();

constexpr std::array<int16_t, 512> MakeByteLevelBytes() {
  std::array<int16_t, 512> bytes = {};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kByteLevelChars[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, 512> kByteLevelBytes = MakeByteLevelBytes();

// The two parts of a merge: ["a", "b"], or "a b" in older files.
std::optional<std::pair<std::string, std::string>> Parts(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return std::nullopt;
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

char32_t ByteLevelChar(uint8_t byte) { return kByteLevelChars[byte]; }

std::optional<std::string> ByteLevelBytes(absl::string_view token) {
  std::string text;
  while (!token.empty()) {
    const std::optional<Utf8Char> next = FirstUtf8Char(token);
    if (!next || next->code >= kByteLevelBytes.size() || kByteLevelBytes[next->code] < 0) return std::nullopt;
    text.push_back(static_cast<char>(kByteLevelBytes[next->code]));
    token.remove_prefix(next->bytes);
  }
  return text;
}

absl::StatusOr<Bpe> Bpe::Read(const Json& json, bool byte_level) {
  JsonFields fields(json, "the model");
  TDOCK_RETURN_IF_ERROR(fields.Object());
  // The oldest files have no type.
  if (const Json& type = fields.Get("type"); !type.is_null() && type != "BPE") {
    return fields.Unsupported("type", "only BPE is");
  }
  Bpe made;
  made.byte_level_ = byte_level;
  JsonFields named(json, kWhere);
  named.Get("type");
  TDOCK_RETURN_IF_ERROR(made.ReadVocabulary(named.Get("vocab")));
  TDOCK_RETURN_IF_ERROR(made.ReadOptions(named));
  made.PrepareCharacters();
  TDOCK_RETURN_IF_ERROR(made.ReadMerges(named.Get("merges")));
  TDOCK_RETURN_IF_ERROR(named.Finish());
  return made;
}

absl::Status Bpe::ReadVocabulary(const Json& vocab) {
  if (!vocab.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kWhere, ": \"vocab\" is missing or not an object"));
  }
  ids_.reserve(vocab.size());
  const auto count = static_cast<int64_t>(vocab.size());
  const int64_t max_id = std::min(2 * count + kMaxHoles, kMaxTokens) - 1;
  for (const auto& [token, value] : vocab.items()) {
    if (!value.is_number_integer() || value < 0 || value > max_id) {
      return absl::InvalidArgumentError(absl::StrCat(kWhere, ": the id of ", Quoted(token), " is ", ShownJson(value),
                                                     ", not an integer from 0 to ", max_id, ", as far as ids of ",
                                                     count, " tokens may reach"));
    }
    const auto id = value.get<int32_t>();
    if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
    if (token.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat(kWhere, ": the token ", Quoted(token), " has ", token.size(),
                                                     " bytes; at most ", kMaxTokenBytes, " are taken"));
    }
    std::optional<std::string>& place = tokens_[static_cast<size_t>(id)];
    if (place) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhere, ": the tokens ", Quoted(*place), " and ", Quoted(token), " both have the id ", id));
    }
    place = token;
    ids_.emplace(token, id);
  }
  return absl::OkStatus();
}

absl::Status Bpe::ReadOptions(JsonFields& fields) {
  if (const Json& dropout = fields.Get("dropout"); !dropout.is_null() && dropout != 0.0) {
    return fields.Unsupported("dropout", "only null and 0 are");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = fields.Get(affix);
    if (!value.is_null() && value != "") return fields.Unsupported(affix, "only null and \"\" are");
  }
  TDOCK_ASSIGN_OR_RETURN(fuse_unknown_, fields.BoolOr("fuse_unk", false));
  TDOCK_ASSIGN_OR_RETURN(const bool byte_fallback, fields.BoolOr("byte_fallback", false));
  TDOCK_ASSIGN_OR_RETURN(ignore_merges_, fields.BoolOr("ignore_merges", false));
  if (const Json& unknown = fields.Get("unk_token"); !unknown.is_null()) {
    TDOCK_ASSIGN_OR_RETURN(const std::string token, fields.String("unk_token"));
    unknown_ = Find(token);
    if (!unknown_) return fields.Damaged("unk_token", "a token of the vocabulary");
  }
  if (byte_fallback && byte_level_) {
    return fields.Unsupported("byte_fallback", "with the pre-tokenizer ByteLevel, only false is");
  }
  bytes_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    if (byte_level_) {
      AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), name);
    } else if (byte_fallback) {
      name = absl::StrFormat("<0x%02X>", byte);
    }
    if (!name.empty()) bytes_[static_cast<size_t>(byte)] = Find(name).value_or(-1);
  }
  return absl::OkStatus();
}

void Bpe::PrepareCharacters() {
  for (const auto& [token, id] : ids_) {
    const std::optional<std::string> word = byte_level_ ? ByteLevelBytes(token) : token;
    if (word) longest_ = std::max(longest_, word->size());
    if (ignore_merges_ && word) words_.emplace(*word, id);
    const std::optional<Utf8Char> first = FirstUtf8Char(token);
    if (!byte_level_ && first && first->bytes == token.size()) characters_.emplace(first->code, id);
  }
}

absl::Status Bpe::ReadMerges(const Json& merges) {
  if (!merges.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(kWhere, ": \"merges\" is missing or not a list"));
  }
  merges_.reserve(merges.size());
  uint32_t rank = 0;
  for (const Json& merge : merges) {
    const auto parts = Parts(merge);
    if (!parts) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhere, ": merge ", rank, " is ", ShownJson(merge), ", neither \"a b\" nor [\"a\", \"b\"]"));
    }
    const std::string joined = parts->first + parts->second;
    for (const std::string& token : {parts->first, parts->second, joined}) {
      if (Find(token)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(kWhere, ": merge ", rank, " needs ", Quoted(token), ", which is not in the vocabulary"));
    }
    merges_[PairKey(*Find(parts->first), *Find(parts->second))] = {rank, *Find(joined)};
    ++rank;
  }
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::Find(absl::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// The characters of a word, before any merge. An unknown one is held back, so that the next can join it; like in
// `tokenizers`, bytes that stand for a character overtake it. Gives the offset of one that nothing stands for.
absl::StatusOr<std::optional<size_t>> Bpe::Begin(absl::string_view word, EncodeBudget& budget,
                                                 std::vector<Symbol>& symbols) const {
  constexpr size_t kBytesBetweenPolls = 4096;
  uint32_t held = 0;
  const auto release = [&] {
    if (held > 0) symbols.push_back({*unknown_, held});
    held = 0;
  };
  for (size_t at = 0, polled = 0; at < word.size();) {
    if (at - polled >= kBytesBetweenPolls) {
      TDOCK_RETURN_IF_ERROR(budget.Spend(at - polled));
      polled = at;
    }
    uint32_t size = 1;
    int32_t id = -1;
    if (byte_level_) {
      id = bytes_[static_cast<unsigned char>(word[at])];
    } else {
      const Utf8Char next = *FirstUtf8Char(word.substr(at));
      size = static_cast<uint32_t>(next.bytes);
      const auto found = characters_.find(next.code);
      if (found != characters_.end()) id = found->second;
    }
    const absl::string_view bytes = word.substr(at, size);
    const auto falls_back = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)] >= 0; };
    if (id >= 0) {
      release();
      symbols.push_back({id, size});
    } else if (!byte_level_ && std::all_of(bytes.begin(), bytes.end(), falls_back)) {
      for (const char byte : bytes) symbols.push_back({bytes_[static_cast<unsigned char>(byte)], 1});
    } else if (unknown_) {
      if (!fuse_unknown_) release();
      held += size;
    } else {
      return at;
    }
    at += size;
  }
  release();
  return std::nullopt;
}

std::optional<size_t> Bpe::max_token_bytes() const {
  const bool any_unknown = !std::all_of(bytes_.begin(), bytes_.end(), [](int32_t id) { return id >= 0; });
  if (!any_unknown || !unknown_) return longest_;
  if (fuse_unknown_) return std::nullopt;
  return std::max<size_t>(longest_, 4);  // a character
}

absl::StatusOr<std::optional<size_t>> Bpe::Encode(absl::string_view word, EncodeBudget& budget,
                                                  std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (ignore_merges_) {
    if (const auto found = words_.find(word); found != words_.end()) {
      symbols.push_back({found->second, static_cast<uint32_t>(word.size())});
      return std::nullopt;
    }
  }
  TDOCK_ASSIGN_OR_RETURN(const std::optional<size_t> unknown_at, Begin(word, budget, symbols));
  if (unknown_at || merges_.empty()) return unknown_at;
  if (symbols.size() <= kShortWord) {
    MergeShort(symbols);
  } else {
    TDOCK_RETURN_IF_ERROR(MergeLong(budget, symbols));
  }
  return std::nullopt;
}

void Bpe::MergeShort(std::vector<Symbol>& symbols) const {
  std::array<Merge, kShortWord> pairs;  // of each symbol with the next
  size_t count = symbols.size();
  const auto look = [&](size_t i) {
    const Merge* merge = FindMerge(symbols[i].id, symbols[i + 1].id);
    pairs[i] = merge != nullptr ? *merge : Merge{kNoRank, 0};
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const auto best = std::min_element(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(count - 1),
                                       [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const auto at = static_cast<size_t>(best - pairs.begin());
    symbols[at] = {best->id, symbols[at].bytes + symbols[at + 1].bytes};
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::copy(best + 1, pairs.begin() + static_cast<std::ptrdiff_t>(count - 1), best);
    --count;
    if (at + 1 < count) look(at);
    if (at > 0) look(at - 1);
  }
}

// A symbol of a long word, and its neighbours that are left; -1: none. A symbol that became part of the one before it
// has no bytes.
struct Bpe::Link {
  Symbol symbol;
  int64_t before;
  int64_t behind;
};

absl::Status Bpe::MergeLong(EncodeBudget& budget, std::vector<Symbol>& symbols) const {
  constexpr size_t kWorkOfPair = 8;
  struct Candidate {
    Merge merge;
    size_t at;
    bool operator<(const Candidate& other) const {  // the queue gives its largest first
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
    }
  };
  const auto count = static_cast<int64_t>(symbols.size());
  std::vector<Link> links;
  links.reserve(symbols.size());
  for (int64_t i = 0; i < count; ++i) {
    links.push_back({symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  std::vector<Candidate> first;
  first.reserve(symbols.size());
  const auto candidate = [&](int64_t left, int64_t right) -> std::optional<Candidate> {
    if (left < 0 || right < 0) return std::nullopt;
    const auto at = static_cast<size_t>(left);
    const Merge* merge = FindMerge(links[at].symbol.id, links[static_cast<size_t>(right)].symbol.id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{*merge, at};
  };
  for (int64_t i = 0; i + 1 < count; ++i) {
    TDOCK_RETURN_IF_ERROR(budget.Spend(1));
    if (const auto found = candidate(i, i + 1)) first.push_back(*found);
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(first));
  while (!queue.empty()) {
    TDOCK_RETURN_IF_ERROR(budget.Spend(kWorkOfPair));
    const Candidate top = queue.top();
    queue.pop();
    Link& left = links[top.at];
    if (left.symbol.bytes == 0 || left.behind < 0) continue;
    Link& right = links[static_cast<size_t>(left.behind)];
    const Merge* merge = FindMerge(left.symbol.id, right.symbol.id);
    if (merge == nullptr || merge->id != top.merge.id) continue;  // one of the two has been merged since
    left.symbol = {merge->id, left.symbol.bytes + right.symbol.bytes};
    right.symbol.bytes = 0;
    left.behind = right.behind;
    const auto at = static_cast<int64_t>(top.at);
    if (left.behind >= 0) links[static_cast<size_t>(left.behind)].before = at;
    if (const auto found = candidate(left.before, at)) queue.push(*found);
    if (const auto found = candidate(at, left.behind)) queue.push(*found);
  }
  symbols.clear();
  for (const Link& link : links) {
    if (link.symbol.bytes > 0) symbols.push_back(link.symbol);
  }
  return absl::OkStatus();
}

}  // namespace tdock::text
