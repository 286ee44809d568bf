#include "core/config/spec.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/config/binding.h"
#include "core/config/names.h"
#include "core/config/value.h"
#include "core/config/yaml_reader.h"

namespace tdock::config {
namespace {

bool IsWellFormed(absl::string_view key) {
  for (absl::string_view word : absl::StrSplit(key, '.')) {
    const auto allowed = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_'; };
    if (word.empty() || !std::all_of(word.begin(), word.end(), allowed)) return false;
  }
  return true;
}

// A section or a key of a configuration that is being dumped.
struct DumpNode {
  absl::string_view name;
  const Binding* binding = nullptr;
  std::vector<DumpNode> children;

  DumpNode& Child(absl::string_view child) {
    for (DumpNode& node : children) {
      if (node.name == child) return node;
    }
    return children.emplace_back(DumpNode{.name = child, .binding = nullptr, .children = {}});
  }

  void AppendTo(std::string& out, size_t indent) const {
    for (const DumpNode& child : children) {
      absl::StrAppend(&out, std::string(indent, ' '), child.name, ":");
      if (child.binding != nullptr) {
        absl::StrAppend(&out, " ", ShowYaml(child.binding->Get()), "\n");
      } else {
        absl::StrAppend(&out, "\n");
        child.AppendTo(out, indent + 2);
      }
    }
  }
};

bool IsUnused(const Spec& spec, const std::string& key) {
  return absl::c_any_of(spec.unused_keys(), [&](const Spec::UnusedKeys& unused) {
    return absl::c_linear_search(unused.keys, key) && unused.when();
  });
}

}  // namespace

IntKey& IntKey::AtLeast(int64_t bound) { return binding_.AtLeast(bound), *this; }
IntKey& IntKey::AtMost(int64_t bound) { return binding_.AtMost(bound), *this; }

FloatKey& FloatKey::AtLeast(double bound) { return binding_.AtLeast(bound), *this; }
FloatKey& FloatKey::MoreThan(double bound) { return binding_.MoreThan(bound), *this; }
FloatKey& FloatKey::AtMost(double bound) { return binding_.AtMost(bound), *this; }
FloatKey& FloatKey::LessThan(double bound) { return binding_.LessThan(bound), *this; }

StringKey& StringKey::NotEmpty() { return binding_.NotEmpty(), *this; }
StringKey& StringKey::OrList() { return binding_.OrList(), *this; }

ListKey& ListKey::NotEmpty() { return binding_.NotEmpty(), *this; }

Spec::Spec() = default;
Spec::~Spec() = default;
Spec::Spec(Spec&&) noexcept = default;
Spec& Spec::operator=(Spec&&) noexcept = default;

template <class B, class... Args>
B& Spec::Bind(std::string key, std::string doc, Args... args) {
  TDOCK_CHECK(IsWellFormed(key), absl::StrCat("'", key, "' is not a key"));
  for (const auto& bound : bindings_) {
    const bool clash = bound->key() == key || IsInside(bound->key(), key) || IsInside(key, bound->key());
    TDOCK_CHECK(!clash, absl::StrCat("the keys ", bound->key(), " and ", key, " clash"));
  }
  for (const OtherName& alias : aliases_) TDOCK_CHECK(alias.other != key, absl::StrCat(key, " is an alias"));
  auto binding = std::make_unique<B>(std::move(key), std::move(doc), std::move(args)...);
  binding->remember_default();
  B& made = *binding;
  bindings_.push_back(std::move(binding));
  return made;
}

IntKey Spec::Int(std::string key, int64_t* field, std::string doc) {
  return IntKey(Bind<IntBinding>(std::move(key), std::move(doc), field));
}

FloatKey Spec::Float(std::string key, double* field, std::string doc) {
  return FloatKey(Bind<FloatBinding>(std::move(key), std::move(doc), field));
}

void Spec::Bool(std::string key, bool* field, std::string doc) {
  Bind<BoolBinding>(std::move(key), std::move(doc), field);
}

StringKey Spec::String(std::string key, std::string* field, std::string doc) {
  return StringKey(Bind<StringBinding>(std::move(key), std::move(doc), field));
}

ListKey Spec::Strings(std::string key, std::vector<std::string>* field, std::string doc) {
  return ListKey(Bind<StringsBinding>(std::move(key), std::move(doc), field));
}

void Spec::BindChoice(std::string key, std::vector<std::string> names, std::function<void(size_t)> set,
                      std::function<size_t()> get, std::string doc) {
  Bind<ChoiceBinding>(std::move(key), std::move(doc), std::move(names), std::move(set), std::move(get));
}

void Spec::Check(std::vector<std::string> keys, std::function<std::vector<std::string>()> check) {
  TDOCK_CHECK(!keys.empty(), "a constraint is over at least one key");
  for (const std::string& key : keys) TDOCK_CHECK(Find(key) != nullptr, absl::StrCat(key, " is not bound"));
  constraints_.push_back({std::move(keys), std::move(check)});
}

void Spec::Unused(std::vector<std::string> keys, std::function<bool()> when, std::string why) {
  for (const std::string& key : keys) TDOCK_CHECK(Find(key) != nullptr, absl::StrCat(key, " is not bound"));
  unused_keys_.push_back({std::move(keys), std::move(when), std::move(why)});
}

void Spec::CheckOtherName(const std::string& other) const {
  TDOCK_CHECK(IsWellFormed(other), absl::StrCat("'", other, "' is not a name of a key"));
  for (const auto& bound : bindings_) {
    TDOCK_CHECK(bound->key() != other && !IsInside(other, bound->key()), absl::StrCat(bound->key(), " is bound"));
  }
}

void Spec::Alias(std::string other, std::string key) {
  CheckOtherName(other);
  TDOCK_CHECK(Find(key) != nullptr, absl::StrCat(key, " is not bound"));
  for (const OtherName& alias : aliases_) TDOCK_CHECK(alias.other != other, absl::StrCat(other, " is an alias twice"));
  aliases_.push_back({std::move(other), std::move(key)});
}

void Spec::AliasSection(std::string other, std::string section) {
  CheckOtherName(other);
  TDOCK_CHECK(IsWellFormed(section) && Find(section) == nullptr, absl::StrCat("'", section, "' is not a section"));
  section_aliases_.push_back({std::move(other), std::move(section)});
}

void Spec::Spread(std::string other, std::vector<std::string> keys) {
  CheckOtherName(other);
  for (const std::string& key : keys) TDOCK_CHECK(Find(key) != nullptr, absl::StrCat(key, " is not bound"));
  spreads_.push_back({std::move(other), std::move(keys)});
}

void Spec::Derive(std::string key, std::vector<std::string> from, Derivation derive) {
  TDOCK_CHECK(Find(key) != nullptr, absl::StrCat(key, " is not bound"));
  for (const std::string& name : from) {
    if (Find(name) == nullptr) CheckOtherName(name);
  }
  derived_.push_back({std::move(key), std::move(from), std::move(derive)});
}

void Spec::AliasValue(absl::string_view key, absl::string_view other, std::string value) {
  Binding* binding = Find(key);
  TDOCK_CHECK(binding != nullptr, absl::StrCat(key, " is not bound"));
  binding->AddOtherValue(other, std::move(value));
}

void Spec::RefuseValue(absl::string_view key, absl::string_view other, std::string why) {
  Binding* binding = Find(key);
  TDOCK_CHECK(binding != nullptr, absl::StrCat(key, " is not bound"));
  binding->AddRefusedValue(other, std::move(why));
}

void Spec::Ignore(std::string name, std::string why, std::vector<std::string> harmless) {
  CheckOtherName(name);
  meaningless_.push_back({std::move(name), std::move(why), std::move(harmless), /*may_be_skipped=*/true});
}

void Spec::Refuse(std::string name, std::string why, std::vector<std::string> harmless) {
  CheckOtherName(name);
  meaningless_.push_back({std::move(name), std::move(why), std::move(harmless), /*may_be_skipped=*/false});
}

Spec& Spec::kept() {
  if (kept_ == nullptr) kept_ = std::make_unique<Spec>();
  return *kept_;
}

Binding* Spec::Find(absl::string_view key) const {
  for (const auto& binding : bindings_) {
    if (binding->key() == key) return binding.get();
  }
  return nullptr;
}

bool Spec::HasSection(absl::string_view section) const {
  return absl::c_any_of(bindings_, [&](const auto& binding) { return IsInside(binding->key(), section); });
}

std::string Dump(const Spec& spec) {
  DumpNode root;
  for (const auto& binding : spec.bindings()) {
    if (IsUnused(spec, binding->key())) continue;
    DumpNode* node = &root;
    for (absl::string_view word : absl::StrSplit(absl::string_view(binding->key()), '.')) node = &node->Child(word);
    node->binding = binding.get();
  }
  std::string out;
  root.AppendTo(out, 0);
  return out;
}

std::optional<std::string> ValueOf(const Spec& spec, absl::string_view key) {
  const Binding* const binding = spec.Find(key);
  if (binding == nullptr) return std::nullopt;
  return ShowYaml(binding->Get());
}

std::map<std::string, std::string> Values(const Spec& spec) {
  std::map<std::string, std::string> values;
  for (const auto& binding : spec.bindings()) {
    if (!IsUnused(spec, binding->key())) values.emplace(binding->key(), ShowYaml(binding->Get()));
  }
  return values;
}

absl::StatusOr<std::map<std::string, std::string>> ValuesIn(absl::string_view yaml, absl::string_view name) {
  TDOCK_ASSIGN_OR_RETURN(const YamlKeys keys, ReadYaml(yaml, name, Limits()));
  if (!keys.duplicates.empty()) return absl::InvalidArgumentError(keys.duplicates.front());
  std::map<std::string, std::string> values;
  for (const YamlEntry& entry : keys.entries) {
    if (entry.kind == Value::Kind::kSection) continue;
    Value value = entry;
    value.scalar.text = UnescapeReferences(value.scalar.text);
    for (Given& item : value.items) item.text = UnescapeReferences(item.text);
    values.emplace(entry.key, ShowYaml(value));
  }
  return values;
}

std::vector<KeyRow> KeyRows(const Spec& spec) {
  const auto cell = [](absl::string_view text) { return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}}); };
  std::vector<KeyRow> rows;
  for (const auto& binding : spec.bindings()) {
    rows.push_back({absl::StrCat("`", binding->key(), "`"), cell(binding->Expected()),
                    cell(absl::StrCat("`", ShowYaml(binding->default_value()), "`")), cell(binding->doc())});
  }
  return rows;
}

std::string Reference(const Spec& spec) {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const KeyRow& row : KeyRows(spec)) {
    absl::StrAppend(&out, "| ", row.key, " | ", row.type, " | ", row.default_value, " | ", row.meaning, " |\n");
  }
  return out;
}

}  // namespace tdock::config
