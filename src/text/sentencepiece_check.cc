#include "text/sentencepiece_check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/tokenizer.h"

namespace tdock::text {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 22;
constexpr size_t kMaxTableBytes = size_t{4} << 20;
// The library finds at most so many prefixes of a text in its table (kMaxTrieResultsSize), and reads on without asking.
constexpr int kMaxPrefixes = 32;

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the sentencepiece model is damaged: ", what));
}

// A field of a protobuf message: a number, or bytes.
struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;  // 0: varint, 1: 64 bits, 2: bytes, 5: 32 bits
  uint64_t value = 0;
  absl::string_view bytes;
};

class FieldReader {
 public:
  explicit FieldReader(absl::string_view message) : rest_(message) {}

  bool done() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    Field field;
    TDOCK_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire_type = tag & 7;
    if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return Damaged("a field has no number");
    if (field.wire_type == 0) {
      TDOCK_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    uint64_t size = field.wire_type == 1 ? 8 : 4;
    if (field.wire_type == 2) {
      TDOCK_ASSIGN_OR_RETURN(size, Varint());
    } else if (field.wire_type != 1 && field.wire_type != 5) {
      return Damaged(absl::StrCat("field ", field.number, " has the wire type ", field.wire_type));
    }
    if (size > rest_.size()) return Damaged(absl::StrCat("field ", field.number, " ends after the message"));
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return field;
  }

 private:
  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return Damaged("it is truncated within a field");
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return Damaged("a number has more than 64 bits");
  }

  absl::string_view rest_;
};

using OnField = std::function<absl::Status(const Field&)>;

absl::Status ForEachField(absl::string_view message, const OnField& on_field) {
  FieldReader reader(message);
  while (!reader.done()) {
    TDOCK_ASSIGN_OR_RETURN(const Field field, reader.Next());
    TDOCK_RETURN_IF_ERROR(on_field(field));
  }
  return absl::OkStatus();
}

absl::Status WantType(const Field& field, uint32_t wire_type) {
  if (field.wire_type == wire_type) return absl::OkStatus();
  return Damaged(absl::StrCat("field ", field.number, " has the wire type ", field.wire_type, ", not ", wire_type));
}

constexpr uint64_t kByteType = 6;

bool IsByteName(absl::string_view text) {
  const auto is_digit = [&](size_t i) { return absl::StrContains("0123456789ABCDEF", text[i]); };
  return text.size() == 6 && text.substr(0, 3) == "<0x" && is_digit(3) && is_digit(4) && text[5] == '>';
}

// message SentencePiece { string piece = 1; float score = 2; Type type = 3; }
absl::Status CheckPiece(absl::string_view message, absl::flat_hash_set<absl::string_view>& seen, size_t& longest) {
  absl::string_view text;
  uint64_t type = 1;
  const absl::Status read = ForEachField(message, [&](const Field& field) {
    if (field.number == 1) {
      text = field.bytes;
      return WantType(field, 2);
    }
    if (field.number == 2) {
      TDOCK_RETURN_IF_ERROR(WantType(field, 5));
      float score;
      std::memcpy(&score, field.bytes.data(), sizeof score);
      if (!std::isfinite(score)) return Damaged(absl::StrCat("a piece has the score ", score));
    }
    if (field.number == 3) {
      TDOCK_RETURN_IF_ERROR(WantType(field, 0));
      type = field.value;
      if (type < 1 || type > 6) return Damaged(absl::StrCat("a piece is of type ", type));
    }
    return absl::OkStatus();
  });
  TDOCK_RETURN_IF_ERROR(read);
  const std::string shown = absl::StrCat("\"", EscapeForMessage(text), "\"");
  if (text.empty()) return Damaged("a piece is empty");
  if (text.size() > kMaxTokenBytes) {
    return Damaged(
        absl::StrCat("the piece ", shown, " has ", text.size(), " bytes; at most ", kMaxTokenBytes, " are taken"));
  }
  longest = std::max(longest, text.size());
  if (FindInvalidUtf8(text)) return Damaged(absl::StrCat("the piece ", shown, " is not UTF-8"));
  if (text.find('\0') != absl::string_view::npos) return Damaged(absl::StrCat("the piece ", shown, " has a zero byte"));
  if (type == kByteType && !IsByteName(text)) return Damaged(absl::StrCat("the piece ", shown, " names no byte"));
  if (!seen.insert(text).second) return Damaged(absl::StrCat("the piece ", shown, " comes twice"));
  return absl::OkStatus();
}

// The table by which text is normalised: a double array of 32-bit units (Darts-clone), which is a graph that is walked
// by the bytes of a text, and the strings that it points to.
//
//   size of the units (4 bytes) │ units │ strings, each ended by a zero byte
//
// Unit i leads to base = i ^ offset; byte c leads on to unit base ^ c, if that has the label c. A unit with a leaf has
// the place of a string in unit `base`.
class TableCheck {
 public:
  absl::Status Run(absl::string_view table) {
    if (table.size() > kMaxTableBytes) return Damaged(absl::StrCat("its table has ", table.size(), " bytes"));
    uint32_t size = 0;
    if (table.size() <= sizeof size) return Damaged("its table is cut off");
    std::memcpy(&size, table.data(), sizeof size);
    table.remove_prefix(sizeof size);
    if (size % sizeof(uint32_t) != 0 || size == 0 || size >= table.size()) return Damaged("its table is cut off");
    units_.resize(size / sizeof(uint32_t));
    std::memcpy(units_.data(), table.data(), size);
    strings_ = table.substr(size);
    if (strings_.back() != '\0') return Damaged("the last string of its table does not end");
    if (FindInvalidUtf8(strings_)) return Damaged("the strings of its table are not UTF-8");
    longest_.assign(units_.size(), kNew);
    return Walk();
  }

 private:
  static constexpr int kNew = -1, kOpen = -2;

  struct Visit {
    size_t unit;
    uint32_t next_label = 0;
    int longest = 0;  // prefixes found below, at most
  };

  size_t Base(size_t unit) const {
    const uint32_t bits = units_[unit];
    return unit ^ ((bits >> 10) << ((bits & (1U << 9)) >> 6));
  }
  bool HasLeaf(size_t unit) const { return (units_[unit] >> 8 & 1) != 0; }

  absl::Status Enter(size_t unit) {
    const size_t base = Base(unit);
    if ((base | 0xFF) >= units_.size()) return Damaged("its table points past its end");
    if (HasLeaf(unit) && (units_[base] & 0x7FFFFFFF) >= strings_.size()) {
      return Damaged("its table points past its strings");
    }
    longest_[unit] = kOpen;
    path_.push_back({unit});
    return absl::OkStatus();
  }

  // Depth first; a unit may be reached in several ways, but not from itself.
  absl::Status Walk() {
    TDOCK_RETURN_IF_ERROR(Enter(0));
    while (!path_.empty()) {
      Visit& visit = path_.back();
      if (visit.next_label == 256) {
        const size_t unit = visit.unit;
        const int longest = visit.longest + (HasLeaf(unit) && unit != 0 ? 1 : 0);
        if (longest > kMaxPrefixes) return Damaged("too many strings of its table are prefixes of one another");
        longest_[unit] = longest;
        path_.pop_back();
        if (!path_.empty()) path_.back().longest = std::max(path_.back().longest, longest);
        continue;
      }
      const uint32_t label = visit.next_label++;
      const size_t next = Base(visit.unit) ^ label;
      if ((units_[next] & ((1U << 31) | 0xFF)) != label) continue;
      if (longest_[next] == kOpen) return Damaged("its table has a cycle");
      if (longest_[next] >= 0) {
        visit.longest = std::max(visit.longest, longest_[next]);
      } else {
        TDOCK_RETURN_IF_ERROR(Enter(next));
      }
    }
    return absl::OkStatus();
  }

  std::vector<uint32_t> units_;
  absl::string_view strings_;
  std::vector<int> longest_;  // by unit
  std::vector<Visit> path_;
};

// message NormalizerSpec { bytes precompiled_charsmap = 2; bool add_dummy_prefix = 3; bool remove_extra_whitespaces =
// 4; }
absl::Status CheckNormalizer(absl::string_view message, bool& adds_prefix, bool& has_table, SentencePieceSpec& spec) {
  return ForEachField(message, [&](const Field& field) {
    if (field.number == 2) {
      TDOCK_RETURN_IF_ERROR(WantType(field, 2));
      has_table |= !field.bytes.empty();
      if (!field.bytes.empty()) return TableCheck().Run(field.bytes);
    }
    if (field.number == 3 || field.number == 4) {
      TDOCK_RETURN_IF_ERROR(WantType(field, 0));
      (field.number == 3 ? adds_prefix : spec.drops_leading_spaces) = field.value != 0;
    }
    return absl::OkStatus();
  });
}

// message TrainerSpec { bool treat_whitespace_as_suffix = 24; bool byte_fallback = 35; string unk_surface = 44; } and
// more
absl::Status CheckTrainer(absl::string_view message, bool& falls_back, SentencePieceSpec& spec) {
  return ForEachField(message, [&](const Field& field) {
    if (field.number == 24 && field.value != 0) {
      return absl::UnimplementedError("a sentencepiece model with treat_whitespace_as_suffix is not supported");
    }
    if (field.number == 35) falls_back = field.wire_type == 0 && field.value != 0;
    if (field.number == 44) {
      TDOCK_RETURN_IF_ERROR(WantType(field, 2));
      if (FindInvalidUtf8(field.bytes)) return Damaged("unk_surface is not UTF-8");
      if (field.bytes.size() > kMaxTokenBytes) {
        return Damaged(
            absl::StrCat("unk_surface has ", field.bytes.size(), " bytes; at most ", kMaxTokenBytes, " are taken"));
      }
      spec.unknown_text = std::string(field.bytes);
    }
    return absl::OkStatus();
  });
}

absl::Status CheckDenormalizer(absl::string_view message) {
  return ForEachField(message, [&](const Field& field) {
    if (field.number == 2 && !field.bytes.empty()) {
      return absl::UnimplementedError("a sentencepiece model with a denormalizer is not supported");
    }
    return absl::OkStatus();
  });
}

}  // namespace

// message ModelProto { repeated SentencePiece pieces = 1; TrainerSpec trainer_spec = 2;
//                      NormalizerSpec normalizer_spec = 3; NormalizerSpec denormalizer_spec = 5; } and more
absl::StatusOr<SentencePieceSpec> CheckSentencePieceModel(absl::string_view bytes) {
  static_assert(std::endian::native == std::endian::little, "the table is little-endian");
  SentencePieceSpec spec;
  bool adds_prefix = true, has_table = false, falls_back = false;
  size_t longest = 1;
  absl::flat_hash_set<absl::string_view> pieces;
  std::array<bool, 6> seen = {};
  const absl::Status read = ForEachField(bytes, [&](const Field& field) -> absl::Status {
    if (field.number < 1 || field.number > 5) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(WantType(field, 2));
    // The library would merge two of them.
    if (field.number > 1 && field.number != 4 && std::exchange(seen[field.number], true)) {
      return Damaged(absl::StrCat("field ", field.number, " comes twice"));
    }
    switch (field.number) {
      case 1:
        if (pieces.size() >= kMaxPieces) return Damaged(absl::StrCat("it has more than ", kMaxPieces, " pieces"));
        return CheckPiece(field.bytes, pieces, longest);
      case 2:
        return CheckTrainer(field.bytes, falls_back, spec);
      case 3:
        return CheckNormalizer(field.bytes, adds_prefix, has_table, spec);
      case 5:
        return CheckDenormalizer(field.bytes);
      default:
        return absl::OkStatus();
    }
  });
  TDOCK_RETURN_IF_ERROR(read);
  if (pieces.empty()) return Damaged("it has no pieces");
  spec.drops_first_space = adds_prefix || spec.drops_leading_spaces;
  if (!has_table && falls_back && !spec.drops_leading_spaces) spec.max_piece_bytes = longest;
  return spec;
}

}  // namespace tdock::text
