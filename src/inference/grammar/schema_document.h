// A JSON schema as it is written: places, references, which keywords belong together, and their rules for values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "inference/grammar/char_dfa.h"

namespace tdock::inference {

using SchemaJson = nlohmann::ordered_json;

// Bounds the time that compiling a grammar takes, whatever its schemas are. Not thread-safe.
class CompileBudget {
 public:
  // Steps of some 100 ns: nodes and edges of automata, names and values that are compared, schemas that are followed.
  static constexpr size_t kMaxSteps = 5'000'000;

  // False once there are more than kMaxSteps.
  bool Spend(size_t steps) {
    steps_ += steps;
    return steps_ <= kMaxSteps;
  }

 private:
  size_t steps_ = 0;
};

// Schemas that a value must all meet: one with those that its $ref and allOf name. Each has been checked.
struct Schemas {
  struct Part {
    const SchemaJson* schema;
    bool has_any = false, has_one = false;  // its anyOf, its oneOf are still to be met

    friend bool operator==(const Part&, const Part&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Part& part) {
      return H::combine(std::move(state), part.schema, part.has_any, part.has_one);
    }
  };
  std::vector<Part> parts = {};       // objects; none: any value meets them
  const SchemaJson* never = nullptr;  // one of them is false

  friend bool operator==(const Schemas&, const Schemas&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Schemas& schemas) {
    return H::combine(std::move(state), schemas.parts, schemas.never);
  }
};

// Not thread-safe.
class SchemaDocument {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 10;
  static constexpr int kMaxDepth = 64;

  // The text is a JSON object. The budget must outlive the document.
  static absl::StatusOr<SchemaDocument> Parse(absl::string_view text, CompileBudget& budget);

  const SchemaJson& root() const { return *root_; }
  // A place of the document, as a JSON pointer: "#/properties/a".
  std::string PathOf(const SchemaJson& place) const;
  // InvalidArgument that says what is wrong with a place, or with a keyword of it.
  absl::Status Error(const SchemaJson& place, absl::string_view why) const;
  absl::Status Error(const SchemaJson& schema, absl::string_view keyword, absl::string_view why) const;

  // InvalidArgument if the budget is spent, for the place at which it is.
  absl::Status Spend(size_t steps, const SchemaJson& place);

  // Follows $ref and allOf, and checks keywords, which must be known and have values of their types. The result has
  // those of `with`, too. InvalidArgument if `schema` leads to itself or to one of `open`.
  absl::StatusOr<Schemas> Expand(const SchemaJson& schema, Schemas with = {}, std::vector<const SchemaJson*> open = {});

 private:
  // A schema whose keywords are right.
  struct Checked {
    const SchemaJson* target = nullptr;  // of its $ref
    bool says_something = false;         // beside $ref and allOf
  };

  SchemaDocument(SchemaJson root, CompileBudget& budget)
      : root_(std::make_unique<const SchemaJson>(std::move(root))), budget_(&budget) {}

  absl::Status ExpandInto(const SchemaJson& schema, std::vector<const SchemaJson*>& open, Schemas& schemas);
  absl::StatusOr<Checked> Check(const SchemaJson& schema);
  absl::StatusOr<const SchemaJson*> Resolve(const SchemaJson& schema, const std::string& reference) const;

  std::unique_ptr<const SchemaJson> root_;
  CompileBudget* budget_;
  absl::flat_hash_map<const SchemaJson*, Checked> checked_;
};

// The value of a keyword; null if the schema does not have it.
const SchemaJson* KeywordOf(const SchemaJson& schema, absl::string_view keyword);

// Rules for single values: types, values that are named, texts, numbers. In schema_values.cc.

// Sets of types. A number is whole or not.
using TypeSet = unsigned;
inline constexpr TypeSet kNullType = 1, kBoolType = 2, kIntegerType = 4, kFractionType = 8, kTextType = 16,
                         kListType = 32, kObjectType = 64, kAllTypes = 127;

// Types that all of the schemas allow. If none of them names types, those that their keywords are about.
absl::StatusOr<TypeSet> TypesOf(SchemaDocument& document, const Schemas& schemas);

// A keyword that counts, clamped to what 32 bits hold: the largest value if it is a minimum of several schemas.
std::optional<uint32_t> LargestCount(const Schemas& schemas, absl::string_view keyword);
std::optional<uint32_t> LeastCount(const Schemas& schemas, absl::string_view keyword);

struct TextRules {
  uint32_t min = 0;
  std::optional<uint32_t> max = {};
  std::optional<CharDfa> dfa = {};  // of patterns and formats, which has the lengths, too; absent: any characters
};
absl::StatusOr<TextRules> TextRulesOf(SchemaDocument& document, const Schemas& schemas);
// The same as an automaton, also where there are only lengths.
absl::StatusOr<CharDfa> DfaOfText(SchemaDocument& document, const Schemas& schemas);

absl::StatusOr<NumberBounds> NumberBoundsOf(SchemaDocument& document, const Schemas& schemas, bool is_integer);

// The values of enum and const that meet all of the schemas. Absent if none of these names values.
absl::StatusOr<std::optional<std::vector<const SchemaJson*>>> ValuesOf(SchemaDocument& document,
                                                                       const Schemas& schemas);

// In formats.cc.

// The regular expression of texts that have a format, or of a part of them where it would be too large: addresses have
// few labels, and URIs a host. Empty for formats that any text has, such as "password". NotFound, with those that are
// known, for another one.
absl::StatusOr<std::string> PatternOfFormat(absl::string_view format);

}  // namespace tdock::inference
