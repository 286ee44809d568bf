#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/config/binding.h"
#include "core/config/names.h"
#include "core/config/overrides.h"
#include "core/config/references.h"
#include "core/config/spec.h"
#include "core/config/value.h"
#include "core/config/yaml_reader.h"

namespace tdock::config {
namespace {

constexpr absl::string_view kCommandLine = "command line";

// A key or a section as it was given.
struct Entry {
  std::string key;      // our name of it
  std::string written;  // its name there
  std::string where;
  Value value;
  bool on_command_line = false;
  bool is_empty_section = false;
  std::string fault = "";  // of a value that cannot be read: what was expected
};

// The key for a message about it.
std::string Named(absl::string_view written, absl::string_view key) {
  return absl::StrCat(EscapeForMessage(written),
                      written == key ? "" : absl::StrCat(" (", EscapeForMessage(key), " here)"));
}

// As they were written, references included.
bool IsSame(const Value& a, const Value& b) {
  const bool are_scalars = a.kind == Value::Kind::kScalar && b.kind == Value::Kind::kScalar;
  return are_scalars && SameScalar(a.scalar.text, b.scalar.text);
}

// The first `most` of the lines, and how many there are beyond.
std::vector<std::string> FirstOf(std::vector<std::string> lines, int most) {
  const size_t shown = static_cast<size_t>(std::max(most, 1));
  if (lines.size() <= shown) return lines;
  const size_t more = lines.size() - shown;
  lines.resize(shown);
  lines.push_back(absl::StrCat("and ", more, " more"));
  return lines;
}

// A reason for which a key is skipped. Notes of a low rank matter more.
struct Note {
  size_t rank;
  std::string where;
  std::string key;
  std::string why;
};
constexpr size_t kUnknownRank = 0, kUnusedRank = 1, kForeignRank = 2;

// "run.yaml:3: a.b: skipped: the reason; also a.c, a.d and 7 more": one line for each reason, in the order of the
// ranks.
std::vector<std::string> LinesOf(std::vector<Note> notes) {
  constexpr size_t kNamed = 4;
  absl::c_stable_sort(notes, [](const Note& a, const Note& b) { return a.rank < b.rank; });
  std::vector<std::vector<const Note*>> reasons;
  absl::flat_hash_map<absl::string_view, size_t> places;
  for (const Note& note : notes) {
    const auto [place, is_first] = places.try_emplace(absl::string_view(note.why), reasons.size());
    if (is_first) reasons.emplace_back();
    reasons[place->second].push_back(&note);
  }
  std::vector<std::string> lines;
  for (const std::vector<const Note*>& same : reasons) {
    std::string line = absl::StrCat(same[0]->where, ": ", same[0]->key, ": skipped: ", same[0]->why);
    const size_t named = std::min(same.size(), 1 + kNamed);
    for (size_t i = 1; i < named; ++i) absl::StrAppend(&line, i == 1 ? "; also " : ", ", same[i]->key);
    if (same.size() > named) absl::StrAppend(&line, " and ", same.size() - named, " more");
    lines.push_back(std::move(line));
  }
  return lines;
}

// One run of Load(): collects what was given, settles which value each key has, and fills the fields.
class Loader {
 public:
  Loader(const Spec& spec, const LoadOptions& options)
      : spec_(spec), options_(options), names_(spec), references_(names_, options.limits) {}

  void ReadFile(absl::string_view yaml, absl::string_view name) {
    absl::StatusOr<YamlKeys> read = ReadYaml(yaml, name, options_.limits);
    if (!read.ok()) {
      unreadable_ = true;
      violations_.emplace_back(read.status().message());
      return;
    }
    for (std::string& duplicate : read->duplicates) violations_.push_back(std::move(duplicate));
    const std::string file = EscapeUnprintable(name);
    std::vector<YamlEntry>& entries = read->entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool is_empty = i + 1 == entries.size() || !IsInside(entries[i + 1].key, entries[i].key);
      entries_.push_back({.key = names_.OurName(entries[i].key),
                          .written = entries[i].key,
                          .where = absl::StrCat(file, ":", entries[i].line),
                          .value = std::move(entries[i]),
                          .is_empty_section = is_empty});
    }
    file_entries_ = entries_.size();
  }

  void ReadOverride(const std::string& text) {
    const std::string example = spec_.bindings().empty() ? "a.b" : spec_.bindings()[0]->key();
    absl::StatusOr<Override> read = ParseOverride(text, example);
    if (!read.ok()) {
      malformed_overrides_.push_back(absl::StrCat(kCommandLine, ": ", read.status().message()));
      return;
    }
    Entry entry{.key = names_.OurName(read->key),
                .written = read->key,
                .where = std::string(kCommandLine),
                .value = {.scalar = {.text = read->value}},
                .on_command_line = true};
    const Spec* const kept = spec_.kept_keys();
    const Binding* binding = names_.Find(entry.key);
    if (binding == nullptr && kept != nullptr) binding = kept->Find(entry.key);
    const bool takes_list = binding != nullptr && binding->takes_list();
    if (FindInvalidUtf8(text) || absl::StrContains(text, '\0')) {
      entry.fault = "expected UTF-8 text";
    } else if (std::optional<Value> value = ParseInlineValue(read->value, takes_list, options_.limits)) {
      entry.value = *std::move(value);
    } else if (binding != nullptr) {
      const bool is_list = absl::StartsWith(read->value, "[");
      entry.fault = absl::StrCat("expected ", binding->Expected(),
                                 is_list ? ", such as [a, b]" : ", with a quote at both ends or at neither");
    }
    entries_.push_back(std::move(entry));
  }

  void FillFields() {
    SettleKeys();
    SpreadKeys();
    DeriveKeys();
    for (const auto& [key, index] : settled_) {
      references_.Add(key, entries_[index].written, entries_[index].value);
    }
    for (size_t i = 0; i < entries_.size();) i = TakeWithContents(i);
    if (spec_.kept_keys() != nullptr) KeepValues(*spec_.kept_keys());
    for (std::string& violation : malformed_overrides_) Violate(std::move(violation));
  }

  void CheckConstraints() {
    if (unreadable_) return;
    for (const Spec::Constraint& constraint : spec_.constraints()) {
      if (absl::c_any_of(constraint.keys, [&](const std::string& key) { return faulty_.contains(key); })) continue;
      for (const std::string& problem : constraint.check()) {
        Violate(absl::StrCat(Shown(constraint.keys), ": ", problem));
        failed_.push_back(&constraint);
      }
    }
  }

  void AddLater() {
    if (unreadable_ || !options_.later) return;
    for (const Conflict& conflict : options_.later()) {
      const auto has_fault = [&](const std::string& key) { return faulty_.contains(key); };
      const bool is_known = absl::c_any_of(failed_, [&](const Spec::Constraint* constraint) {
        return absl::c_all_of(conflict.keys,
                              [&](const std::string& key) { return absl::c_linear_search(constraint->keys, key); });
      });
      if (is_known || absl::c_any_of(conflict.keys, has_fault)) continue;
      Violate(absl::StrCat(Shown(conflict.keys), ": ", conflict.what));
    }
  }

  void CheckUnused() {
    for (const Spec::UnusedKeys& unused : spec_.unused_keys()) {
      if (!unused.when()) continue;
      for (const std::string& key : unused.keys) {
        const auto given = given_.find(key);
        if (given == given_.end() || SaysNothing(*spec_.Find(key))) continue;
        const Entry& entry = entries_[given->second];
        if (options_.lenient) {
          notes_.push_back({kUnusedRank, entry.where, Named(entry.written, key), unused.why});
        } else {
          Violate(entry, unused.why);
        }
      }
    }
  }

  absl::Status Result() && {
    if (options_.note) {
      const std::vector<std::string> lines = FirstOf(LinesOf(std::move(notes_)), options_.limits.max_notes);
      for (const std::string& line : lines) options_.note(line);
    }
    if (violations_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrJoin(FirstOf(std::move(violations_), options_.limits.max_reported), "\n"));
  }

 private:
  void Violate(std::string line) { violations_.push_back(std::move(line)); }

  void Violate(const Entry& entry, absl::string_view what) {
    Violate(absl::StrCat(entry.where, ": ", Named(entry.written, entry.key), ": ", what));
  }

  // Where the first of the keys was given, and the values of all.
  std::string Shown(const std::vector<std::string>& keys) const {
    const std::string values = absl::StrJoin(keys, ", ", [&](std::string* out, const std::string& key) {
      const auto given = given_.find(key);
      const std::string name = given == given_.end() ? key : Named(entries_[given->second].written, key);
      absl::StrAppend(out, name, " = ", EscapeUnprintable(Current(key)), given == given_.end() ? " (default)" : "");
    });
    const auto given = absl::c_find_if(keys, [&](const std::string& key) { return given_.contains(key); });
    return absl::StrCat(given == keys.end() ? "default" : entries_[given_.at(*given)].where, ": ", values);
  }

  std::string Current(const std::string& key) const {
    if (std::optional<std::string> value = ValueOf(spec_, key)) return *std::move(value);
    const Spec* const kept = spec_.kept_keys();
    return (kept == nullptr ? std::nullopt : ValueOf(*kept, key)).value_or("not known");
  }

  // True if an unused key has its default, or 0, which switches it off.
  static bool SaysNothing(const Binding& binding) {
    const Value value = binding.Get();
    const bool is_zero =
        value.kind == Value::Kind::kScalar && !value.scalar.quoted && SameScalar(value.scalar.text, "0");
    return is_zero || ShowYaml(value) == ShowYaml(binding.default_value());
  }

  // Finds the entry that gives each key its value.
  void SettleKeys() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const auto [settled, is_first] = settled_.try_emplace(entry.key, i);
      if (is_first) continue;
      const Entry& before = entries_[settled->second];
      const bool replaces = before.written == entry.written || before.on_command_line != entry.on_command_line;
      if (replaces || before.value.null()) {
        settled->second = i;
      } else if (!entry.value.null() && !IsSame(before.value, entry.value) && names_.Find(entry.key) != nullptr) {
        faulty_.insert(entry.key);
        Violate(entry, absl::StrCat("also given as ", EscapeForMessage(before.written), " (", before.where,
                                    "), another name of the same key; keep one"));
      }
    }
  }

  // Adds an entry for each key that gets its value from a name that gives several.
  void SpreadKeys() {
    for (const Spec::SpreadKeys& spread : spec_.spreads()) {
      const auto settled = settled_.find(spread.other);
      if (settled == settled_.end() || entries_[settled->second].value.null()) continue;
      const Entry from = entries_[settled->second];
      const bool is_list = from.value.kind == Value::Kind::kList;
      if (is_list && from.value.items.size() != spread.keys.size()) {
        Violate(absl::StrCat(from.where, ": ", EscapeForMessage(from.written), ": a list of ", from.value.items.size(),
                             " given, expected one item for each of ", absl::StrJoin(spread.keys, ", ")));
        continue;
      }
      for (size_t i = 0; i < spread.keys.size(); ++i) {
        const auto own = settled_.find(spread.keys[i]);
        if (own != settled_.end() && !entries_[own->second].value.null()) continue;
        Entry entry = from;
        entry.key = spread.keys[i];
        if (is_list) entry.value = {.scalar = from.value.items[i]};
        settled_[entry.key] = entries_.size();
        entries_.push_back(std::move(entry));
      }
    }
  }

  // Adds an entry for each key that gets its value from keys of other programs.
  void DeriveKeys() {
    if (spec_.derived().empty()) return;
    References values(names_, options_.limits);
    for (const auto& [key, index] : settled_) values.Add(key, entries_[index].written, entries_[index].value);
    const size_t known = entries_.size();
    for (const Spec::DerivedKey& derived : spec_.derived()) Derive(derived, known, values);
  }

  // The first `known` entries are those that `values` has.
  void Derive(const Spec::DerivedKey& derived, size_t known, References& values) {
    std::vector<std::string> texts;
    std::optional<Entry> first;  // of the keys that are given, except for the derived one
    for (const std::string& name : derived.from) {
      const auto settled = settled_.find(name);
      texts.emplace_back();
      // Only keys that were given count, not derived ones.
      if (settled == settled_.end() || settled->second >= known) continue;
      const absl::StatusOr<Value> value = values.ValueOf(name);
      if (value.ok() && (value->null() || value->missing())) continue;
      if (value.ok()) texts.back() = TextOf(*value);
      if (first || name == derived.key) continue;
      first = entries_[settled->second];
      if (!value.ok()) first->fault = std::string(value.status().message());
    }
    if (!first) return;
    const auto own = settled_.find(derived.key);
    const Entry* const given =
        own == settled_.end() || entries_[own->second].value.null() ? nullptr : &entries_[own->second];
    if (given != nullptr && given->on_command_line && !first->on_command_line) return;
    const std::optional<std::string> text = derived.derive(texts);
    if (!text && first->fault.empty()) return;
    first->key = derived.key;
    if (first->fault.empty()) first->value = {.scalar = {.text = *text}};
    if (given != nullptr && given->on_command_line == first->on_command_line && !IsSame(given->value, first->value) &&
        !absl::c_linear_search(derived.from, derived.key)) {
      faulty_.insert(derived.key);
      Violate(*first, absl::StrCat("also given as ", EscapeForMessage(given->written), " (", given->where,
                                   "), which says something else; keep one"));
      return;
    }
    settled_[derived.key] = entries_.size();
    entries_.push_back(*std::move(first));
  }

  static std::string TextOf(const Value& value) {
    if (value.kind == Value::Kind::kSection) return "{}";
    if (value.kind == Value::Kind::kScalar) return value.scalar.text;
    return absl::StrJoin(value.items, ",", [](std::string* out, const Given& item) { *out += item.text; });
  }

  // Returns the next entry. Of a section that was dealt with as a whole, only those keys count for which something else
  // holds than for the section.
  size_t TakeWithContents(size_t section) {
    size_t i = section + 1;
    if (!Take(section)) return i;
    const Spec::Meaningless* whole = names_.FindMeaningless(entries_[section].key);
    while (i < file_entries_ && IsInside(entries_[i].written, entries_[section].written)) {
      i = names_.FindMeaningless(entries_[i].key) == whole ? i + 1 : TakeWithContents(i);
    }
    return i;
  }

  // Whether the contents of the entry, if it is a section, are dealt with by that.
  bool Take(size_t i) {
    const Entry& entry = entries_[i];
    const bool counts = settled_.at(entry.key) == i;
    if (Binding* binding = names_.Find(entry.key)) {
      if (counts) Fill(*binding, i);
      return true;
    }
    if (names_.IsSection(entry.key) || names_.IsSection(entry.written)) {
      TakeSection(entry);
      return false;
    }
    if (names_.IsSpread(entry.key)) return true;
    if (const Spec::Meaningless* meaningless = names_.FindMeaningless(entry.key)) {
      if (counts) TakeMeaningless(*meaningless, i);
      return true;
    }
    TakeUnknown(entry);
    return false;
  }

  void Fill(Binding& binding, size_t i) {
    const Entry& entry = entries_[i];
    const absl::StatusOr<Value> value = references_.ValueOf(entry.key);
    std::string fault = entry.fault;
    if (!fault.empty()) {
      fault = absl::StrCat(Describe(entry.value), " given, ", fault);
    } else if (!value.ok()) {
      fault = std::string(value.status().message());
    } else if (value->missing()) {
      fault = absl::StrCat("??? stands for a value that must be given, here or as ", EscapeForMessage(entry.written),
                           "=… on the command line");
    } else if (!value->null() && !binding.Fill(*value)) {
      fault = absl::StrCat(DescribeExpanded(entry.value, *value), " given, expected ", binding.Expected(),
                           binding.Hint(value->scalar));
    }
    if (!fault.empty()) {
      faulty_.insert(entry.key);
      // What is missing may be in the file that could not be read.
      if (value.ok() || !unreadable_) Violate(entry, fault);
    } else if (!value->null()) {
      given_[entry.key] = i;
    }
  }

  void KeepValues(const Spec& kept) {
    for (const auto& binding : kept.bindings()) {
      const auto settled = settled_.find(binding->key());
      // Of a key that stays to be given, what is said about it elsewhere is enough.
      if (settled != settled_.end() && !entries_[settled->second].value.missing()) Fill(*binding, settled->second);
    }
  }

  static std::string DescribeExpanded(const Value& written, const Value& value) {
    if (written.kind != Value::Kind::kScalar || written.scalar.text == value.scalar.text) return Describe(value);
    return absl::StrCat(Describe(value), " (from ", EscapeForMessage(written.scalar.text), ")");
  }

  void TakeSection(const Entry& entry) {
    if (entry.value.kind == Value::Kind::kSection || entry.value.null()) return;
    Violate(absl::StrCat(entry.where, ": ", EscapeForMessage(entry.written), ": ", Describe(entry.value),
                         " given, expected a section with keys such as ",
                         EscapeForMessage(names_.FirstKeyIn(entry.written))));
  }

  void TakeMeaningless(const Spec::Meaningless& meaningless, size_t i) {
    const Entry& entry = entries_[i];
    const absl::StatusOr<Value> value = references_.ValueOf(entry.key);
    if (value.ok() && ChangesNothing(meaningless, *value, i)) return;
    const std::string start = absl::StrCat(entry.where, ": ", EscapeForMessage(entry.written), ": ");
    if (!meaningless.may_be_skipped) {
      const std::string instead =
          meaningless.harmless.empty() ? "remove it" : absl::StrCat("expected ", meaningless.harmless[0]);
      Violate(
          absl::StrCat(start, Describe(value.ok() ? *value : entry.value), " given, ", instead, ": ", meaningless.why));
    } else if (options_.lenient) {
      notes_.push_back({RankOf(meaningless), entry.where, EscapeForMessage(entry.written), meaningless.why});
    } else {
      Violate(absl::StrCat(start, meaningless.why, "; remove it, or pass --lenient"));
    }
  }

  size_t RankOf(const Spec::Meaningless& meaningless) const {
    const std::vector<Spec::Meaningless>& all = spec_.meaningless();
    const auto found = absl::c_find_if(all, [&](const auto& each) { return each.name == meaningless.name; });
    return kForeignRank + static_cast<size_t>(found - all.begin());
  }

  bool ChangesNothing(const Spec::Meaningless& meaningless, const Value& value, size_t i) {
    if (value.null() || value.missing() || (value.kind == Value::Kind::kSection && IsOff(i))) return true;
    return value.kind == Value::Kind::kScalar && absl::c_any_of(meaningless.harmless, [&](const std::string& harmless) {
             return SameScalar(harmless, value.scalar.text);
           });
  }

  // True for a section in which nothing has a value, or which says that it is off.
  bool IsOff(size_t section) {
    const std::string& name = entries_[section].written;
    bool blank = true;
    for (size_t i = section + 1; i < file_entries_ && IsInside(entries_[i].written, name); ++i) {
      const absl::string_view word = absl::string_view(entries_[i].written).substr(name.size() + 1);
      if (word == "enable" || word == "enabled") {
        const absl::StatusOr<Value> value = references_.ValueOf(entries_[i].key);
        if (value.ok() && SameScalar(value->scalar.text, "false")) return true;
      }
      blank = blank && (entries_[i].value.kind == Value::Kind::kSection || entries_[i].value.null());
    }
    return blank;
  }

  void TakeUnknown(const Entry& entry) {
    // Each key in an unknown section is reported separately, since each may belong to a different section.
    if (entry.value.kind == Value::Kind::kSection && !entry.is_empty_section) return;
    // Distances take time, and ten thousand unknown keys must not cost too much.
    const bool advise = unknown_++ < options_.limits.max_reported;
    const std::string written = EscapeForMessage(entry.written);
    if (!options_.lenient) {
      const std::string elsewhere = advise && options_.elsewhere ? options_.elsewhere(entry.key) : "";
      Violate(absl::StrCat(entry.where, ": ", written, ": unknown key; ", advise ? names_.Advice(entry.written) : "",
                           elsewhere.empty() ? "" : "; ", elsewhere));
      return;
    }
    if (entry.value.null()) return;
    const std::optional<std::string> nearest = advise ? names_.Nearest(entry.written) : std::nullopt;
    notes_.push_back({kUnknownRank, entry.where, written,
                      nearest ? absl::StrCat("unknown key; did you mean ", *nearest, "?") : "unknown key"});
  }

  const Spec& spec_;
  const LoadOptions& options_;
  const Names names_;
  References references_;
  bool unreadable_ = false;
  std::vector<Entry> entries_;  // of the file in its order, then the overrides, then the spread and derived values
  size_t file_entries_ = 0;
  absl::flat_hash_map<std::string, size_t> settled_;  // key to the entry that counts
  absl::flat_hash_map<std::string, size_t> given_;    // the same for those whose field has been filled
  absl::flat_hash_set<std::string> faulty_;
  std::vector<const Spec::Constraint*> failed_;
  int unknown_ = 0;
  std::vector<std::string> malformed_overrides_;
  std::vector<std::string> violations_;
  std::vector<Note> notes_;
};

}  // namespace

absl::Status Load(const Spec& spec, absl::string_view yaml, absl::string_view name,
                  std::span<const std::string> overrides, const LoadOptions& options) {
  Loader loader(spec, options);
  loader.ReadFile(yaml, name);
  for (const std::string& text : overrides) loader.ReadOverride(text);
  loader.FillFields();
  loader.CheckConstraints();
  loader.CheckUnused();
  loader.AddLater();
  return std::move(loader).Result();
}

}  // namespace tdock::config
