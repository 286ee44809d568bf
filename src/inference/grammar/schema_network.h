// JSON schemas as networks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "inference/grammar/grammar.h"
#include "inference/grammar/json_network.h"
#include "inference/grammar/schema_document.h"

namespace tdock::inference {

// Adds the values that a schema allows to a network.
//
// Where a schema leaves open what may be there beside what it names, nothing may: an object with "properties" or
// "patternProperties" has no other names unless "additionalProperties" says so, and a list with "prefixItems" no other
// items unless "items", "minItems" or "maxItems" does. A schema without "type" allows the types that its keywords are
// about. "oneOf" is as "anyOf". Texts, names and numbers of enum and const are spelled in one way.
class SchemaNetwork {
 public:
  // Adds literal text of a call, and returns the node behind it.
  using AddSpelled = absl::FunctionRef<NodeId(NodeId from, absl::string_view text)>;

  // Both must outlive it.
  SchemaNetwork(JsonNetwork& json, SchemaDocument& document)
      : json_(json), builder_(json.builder()), document_(document) {}

  // The values of the whole schema, which are objects if `only_objects`.
  absl::Status Add(bool only_objects, NodeId from, NodeId to);
  // The arguments of a call that are no JSON object.
  absl::Status AddArguments(const ArgumentTags& tags, AddSpelled add_spelled, NodeId from, NodeId to);

  // When the network is finished, and nothing can be read from `start` on: why.
  absl::Status WhyNever(const Network& network) const;

 private:
  struct Member {
    std::string name;
    Schemas value;
    bool is_required;
  };
  // Members whose names are not in the schema.
  struct ExtraMembers {
    std::optional<CharDfa> names;  // absent: any
    Schemas value;
  };
  // One of "patternProperties", and the number of the schema that has it.
  struct NamePattern {
    size_t part;
    const CharDfa* names;
    const SchemaJson* value;
  };
  // The properties of each schema, by name.
  using Properties = std::vector<absl::flat_hash_map<absl::string_view, const SchemaJson*>>;
  // Why no value meets a schema.
  struct Unmet {
    const SchemaJson* place = nullptr;
    const char* keyword = nullptr;  // of it; null: the whole place
    const char* why = "";
  };
  // Adds an item of a list, or a member of an object, and returns the node behind it.
  using AddItem = absl::FunctionRef<absl::StatusOr<NodeId>(NodeId from)>;

  // False if no value meets the schemas; then unmet_ says why.
  absl::StatusOr<bool> AddValue(const Schemas& schemas, NodeId from, NodeId to);
  // The same, where there must be one.
  absl::Status AddNeededValue(const Schemas& schemas, NodeId from, NodeId to);
  absl::StatusOr<bool> AddBranches(Schemas schemas, size_t part, const char* keyword, NodeId from, NodeId to);
  absl::StatusOr<bool> AddTypes(const Schemas& schemas, NodeId from, NodeId to);
  absl::StatusOr<bool> AddNumbers(const Schemas& schemas, bool is_integer, NodeId from, NodeId to);
  absl::Status AddText(const Schemas& schemas, NodeId from, NodeId to);
  absl::Status AddUnquotedText(const Schemas& schemas, NodeId from, NodeId to);
  void AddNamedValue(const SchemaJson& value, NodeId from, NodeId to);
  absl::Status Spend(size_t steps, const Schemas& schemas);
  NodeId Entry(const Schemas& schemas, bool is_object);
  absl::Status AddBodies();

  // In schema_bodies.cc.
  absl::Status AddObject(const Schemas& schemas, NodeId entry);
  absl::StatusOr<std::vector<Member>> MembersOf(const Schemas& schemas);
  // Those that can be there. InvalidArgument for one that cannot, and is required.
  absl::StatusOr<std::vector<Member>> WithoutNever(std::vector<Member> members) const;
  absl::StatusOr<Schemas> MemberOf(const Schemas& schemas, const Properties& properties,
                                   const std::vector<NamePattern>& patterns, absl::string_view name);
  absl::StatusOr<std::vector<NamePattern>> PatternsOf(const Schemas& schemas);
  absl::StatusOr<std::vector<ExtraMembers>> ExtrasOf(const Schemas& schemas, const std::vector<Member>& members);
  absl::StatusOr<std::optional<CharDfa>> NamesOf(const Schemas& schemas);
  absl::StatusOr<NodeId> AddMember(const ExtraMembers& extra, NodeId from);
  absl::Status AddFixedMembers(const Schemas& schemas, const std::vector<Member>& members,
                               const std::vector<ExtraMembers>& extras, NodeId begin);
  absl::Status AddOnlyExtras(const Schemas& schemas, const std::vector<ExtraMembers>& extras, NodeId begin);
  absl::Status AddList(const Schemas& schemas, NodeId entry);
  absl::StatusOr<std::vector<Schemas>> PrefixOf(const Schemas& schemas);
  // Absent: there are no items behind those of the prefix.
  absl::StatusOr<std::optional<Schemas>> RestOf(const Schemas& schemas, size_t prefix, bool is_open);
  absl::Status AddDistinctItems(const Schemas& schemas, const Schemas& items, uint32_t min, std::optional<uint32_t> max,
                                NodeId begin);
  absl::Status AddItems(NodeId begin, char close, uint32_t before, uint32_t min, std::optional<uint32_t> max,
                        AddItem add_item);
  absl::StatusOr<const CharDfa*> PatternDfa(const SchemaJson& schema, const char* keyword, const std::string& pattern);

  JsonNetwork& json_;
  NetworkBuilder& builder_;
  SchemaDocument& document_;

  Unmet unmet_;                              // of the last value that nothing meets
  std::vector<const SchemaJson*> choosing_;  // the schemas of whose anyOf a branch is being added
  size_t branches_ = 0;                      // in all
  const std::string* text_end_ = nullptr;    // texts are without quotes, and do not contain it
  absl::flat_hash_map<Schemas, NodeId> objects_, lists_;
  struct Body {
    bool is_object;
    Schemas schemas;
    NodeId entry;
  };
  std::vector<Body> bodies_;  // in the order of their entries
  size_t added_bodies_ = 0;
  std::map<std::string, NodeId> texts_;     // by what they must meet
  std::map<std::string, CharDfa> numbers_;  // likewise
  std::map<std::string, CharDfa> patterns_;
};

}  // namespace tdock::inference
