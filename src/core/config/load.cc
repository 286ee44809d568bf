#include <algorithm>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/binding.h"
#include "core/config/nearest.h"
#include "core/config/spec.h"
#include "core/config/yaml_reader.h"

namespace tdock::config {
namespace {

constexpr absl::string_view kCommandLine = "command line";

std::string Describe(const Given& given) {
  if (given.null) return "nothing";
  return absl::StrCat(given.quoted ? "the quoted text " : "", "\"", EscapeForMessage(given.text), "\"");
}

std::string Describe(const YamlEntry& entry) {
  switch (entry.kind) {
    case YamlEntry::Kind::kSection:
      return "a section of keys";
    case YamlEntry::Kind::kList:
      return "a list";
    case YamlEntry::Kind::kScalar:
      break;
  }
  return Describe(entry.scalar);
}

// One run of Load(): fills fields and collects what is wrong.
class Loader {
 public:
  Loader(const Spec& spec, const Limits& limits) : spec_(spec), limits_(limits) {
    for (const auto& binding : spec.bindings()) {
      known_.push_back(binding->key());
      bindings_[binding->key()] = binding.get();
      absl::string_view section = binding->key();
      for (size_t dot = section.rfind('.'); dot != absl::string_view::npos; dot = section.rfind('.')) {
        section = section.substr(0, dot);
        sections_.insert(std::string(section));
      }
    }
  }

  void TakeYaml(absl::string_view yaml, absl::string_view name) {
    absl::StatusOr<YamlKeys> read = ReadYaml(yaml, name, limits_);
    if (!read.ok()) {
      unreadable_ = true;
      violations_.emplace_back(read.status().message());
      return;
    }
    for (std::string& duplicate : read->duplicates) violations_.push_back(std::move(duplicate));
    const std::vector<YamlEntry>& entries = read->entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool empty_section = i + 1 == entries.size() || !absl::StartsWith(entries[i + 1].key, entries[i].key + ".");
      TakeEntry(entries[i], empty_section, absl::StrCat(name, ":", entries[i].line));
      if (!bindings_.contains(entries[i].key)) continue;
      // The contents of a section that stands in place of a value were reported with it.
      const std::string inside = entries[i].key + ".";
      while (i + 1 < entries.size() && absl::StartsWith(entries[i + 1].key, inside)) ++i;
    }
  }

  void TakeOverride(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      Violate(absl::StrCat(kCommandLine, ": \"", EscapeForMessage(text), "\" given, expected key=value, such as ",
                           known_.empty() ? "a.b" : known_[0], "=…"));
      return;
    }
    const std::string key = text.substr(0, equals);
    const std::string value = text.substr(equals + 1);
    if (FindInvalidUtf8(text) || absl::StrContains(text, '\0')) {
      faulty_.insert(key);
      Violate(absl::StrCat(kCommandLine, ": ", EscapeForMessage(key), ": \"", EscapeForMessage(value),
                           "\" given, expected UTF-8 text"));
      return;
    }
    YamlEntry entry{.key = key, .line = 0, .kind = YamlEntry::Kind::kScalar, .scalar = {.text = value}};
    TakeEntry(entry, false, std::string(kCommandLine));
  }

  void CheckConstraints() {
    if (unreadable_) return;
    for (const Spec::Constraint& constraint : spec_.constraints()) {
      const auto is_faulty = [&](const std::string& key) { return faulty_.contains(key); };
      if (std::any_of(constraint.keys.begin(), constraint.keys.end(), is_faulty)) continue;
      const std::string values = absl::StrJoin(constraint.keys, ", ", [&](std::string* out, const std::string& key) {
        absl::StrAppend(out, key, " = ", bindings_.at(key)->Yaml(), given_.contains(key) ? "" : " (default)");
      });
      const auto given = std::find_if(constraint.keys.begin(), constraint.keys.end(),
                                      [&](const std::string& key) { return given_.contains(key); });
      const std::string where = given == constraint.keys.end() ? "default" : given_.at(*given);
      for (const std::string& problem : constraint.check()) Violate(absl::StrCat(where, ": ", values, ": ", problem));
    }
  }

  void CheckUnused() {
    for (const Spec::UnusedKeys& unused : spec_.unused_keys()) {
      if (!unused.when()) continue;
      for (const std::string& key : unused.keys) {
        if (given_.contains(key)) Violate(absl::StrCat(given_.at(key), ": ", key, ": ", unused.why));
      }
    }
  }

  absl::Status Result() && {
    if (violations_.empty()) return absl::OkStatus();
    const size_t shown = std::min(violations_.size(), static_cast<size_t>(std::max(limits_.max_reported, 1)));
    std::string message =
        absl::StrJoin(violations_.begin(), violations_.begin() + static_cast<std::ptrdiff_t>(shown), "\n");
    if (shown < violations_.size()) absl::StrAppend(&message, "\nand ", violations_.size() - shown, " more");
    return absl::InvalidArgumentError(message);
  }

 private:
  void Violate(std::string line) { violations_.push_back(std::move(line)); }

  void TakeEntry(const YamlEntry& entry, bool empty_section, const std::string& where) {
    const auto found = bindings_.find(entry.key);
    const bool is_scalar = entry.kind == YamlEntry::Kind::kScalar;
    if (found == bindings_.end()) {
      TakeUnbound(entry, empty_section, where);
    } else if (!is_scalar || !found->second->Set(entry.scalar)) {
      faulty_.insert(entry.key);
      Violate(absl::StrCat(where, ": ", entry.key, ": ", Describe(entry), " given, expected ",
                           found->second->Expected(), found->second->Hint(entry.scalar)));
    } else {
      given_[entry.key] = where;
    }
  }

  void TakeUnbound(const YamlEntry& entry, bool empty_section, const std::string& where) {
    const bool nothing = entry.kind == YamlEntry::Kind::kScalar && entry.scalar.null;
    if (sections_.contains(entry.key)) {
      if (entry.kind == YamlEntry::Kind::kSection || nothing) return;
      Violate(absl::StrCat(where, ": ", entry.key, ": ", Describe(entry),
                           " given, expected a section with keys such as ", FirstIn(entry.key)));
      return;
    }
    // Each key in an unknown section is reported separately, since each may belong to a different section.
    if (entry.kind == YamlEntry::Kind::kSection && !empty_section) return;
    // Distances take time, and ten thousand unknown keys must not cost too much.
    const bool will_be_shown = violations_.size() < static_cast<size_t>(limits_.max_reported);
    const std::optional<std::string> nearest = will_be_shown ? NearestKey(entry.key, known_) : std::nullopt;
    const std::string advice = nearest ? absl::StrCat("did you mean ", *nearest, "?") : Siblings(entry.key);
    Violate(absl::StrCat(where, ": ", EscapeForMessage(entry.key), ": unknown key; ", advice));
  }

  const std::string& FirstIn(const std::string& section) const {
    return *std::find_if(known_.begin(), known_.end(),
                         [&](const std::string& key) { return absl::StartsWith(key, section + "."); });
  }

  // The keys of the innermost known section around an unknown key.
  std::string Siblings(absl::string_view key) const {
    std::string section;
    for (size_t dot = key.rfind('.'); dot != absl::string_view::npos; dot = key.rfind('.')) {
      key = key.substr(0, dot);
      if (sections_.contains(key)) {
        section = absl::StrCat(key, ".");
        break;
      }
    }
    std::vector<absl::string_view> names;
    for (absl::string_view known : known_) {
      if (!absl::StartsWith(known, section)) continue;
      const absl::string_view name = known.substr(section.size(), known.find('.', section.size()) - section.size());
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return absl::StrCat("there is ", absl::StrJoin(names, ", "), section.empty() ? "" : " in ",
                        absl::string_view(section).substr(0, section.empty() ? 0 : section.size() - 1));
  }

  const Spec& spec_;
  const Limits limits_;
  bool unreadable_ = false;
  std::vector<std::string> known_;
  absl::flat_hash_map<std::string, Binding*> bindings_;
  absl::flat_hash_set<std::string> sections_;
  absl::flat_hash_map<std::string, std::string> given_;  // key to where it was given last
  absl::flat_hash_set<std::string> faulty_;
  std::vector<std::string> violations_;
};

}  // namespace

absl::Status Load(const Spec& spec, absl::string_view yaml, absl::string_view name,
                  std::span<const std::string> overrides, const Limits& limits) {
  Loader loader(spec, limits);
  loader.TakeYaml(yaml, name);
  for (const std::string& text : overrides) loader.TakeOverride(text);
  loader.CheckConstraints();
  loader.CheckUnused();
  return std::move(loader).Result();
}

absl::Status LoadFile(Env& env, const Spec& spec, const std::string& path, std::span<const std::string> overrides,
                      const Limits& limits) {
  // Mapped, so that a huge file is refused before it is read.
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, env.MapFile(path));
  const std::span<const std::byte> bytes = file->bytes();
  const absl::string_view yaml(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Load(spec, yaml, path, overrides, limits);
}

}  // namespace tdock::config
