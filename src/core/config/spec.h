// Configuration: YAML text and command-line overrides into the fields of a program's own structs.
//
// A Spec binds each dotted key to a field once, and from that loads, dumps and documents:
//
//   ActorConfig c;
//   Spec spec;
//   spec.Int("actor.ppo_mini_batch_size", &c.mini_batch, "Prompts per optimizer step.").AtLeast(1);
//   spec.Float("actor.lr", &c.lr, "Learning rate.").MoreThan(0);
//   spec.Choice("actor.kl_loss_type", &c.kl, {{"k1", Kl::kK1}, {"k3", Kl::kK3}}, "Estimator of the KL loss.");
//   spec.Check({"actor.ppo_mini_batch_size", "data.train_batch_size"}, [&] { … });
//   absl::Status loaded = Load(spec, yaml_text, "grpo.yaml", {"actor.lr=3e-4"});
//
// The value of a field when it is bound is its default.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::config {

class Binding;
class IntBinding;
class FloatBinding;
class StringBinding;
class StringsBinding;

// The result of Spec's functions, to add constraints to the key just bound.
class IntKey {
 public:
  explicit IntKey(IntBinding& binding) : binding_(binding) {}
  IntKey& AtLeast(int64_t bound);
  IntKey& AtMost(int64_t bound);

 private:
  IntBinding& binding_;
};

class FloatKey {
 public:
  explicit FloatKey(FloatBinding& binding) : binding_(binding) {}
  FloatKey& AtLeast(double bound);
  FloatKey& MoreThan(double bound);
  FloatKey& AtMost(double bound);
  FloatKey& LessThan(double bound);

 private:
  FloatBinding& binding_;
};

class StringKey {
 public:
  explicit StringKey(StringBinding& binding) : binding_(binding) {}
  StringKey& NotEmpty();
  // The text is a list with commas, which may also be given as a list: [a, b] is "a,b".
  StringKey& OrList();

 private:
  StringBinding& binding_;
};

class ListKey {
 public:
  explicit ListKey(StringsBinding& binding) : binding_(binding) {}
  // At least one item, and none of them empty.
  ListKey& NotEmpty();

 private:
  StringsBinding& binding_;
};

// The keys of a configuration and the fields that they fill. Fields must outlive the Spec. A key is one or more words
// of [a-z0-9_] joined by dots; it is bound once, and none is a section of another. `doc` is one line of Markdown.
// Not thread-safe.
class Spec {
 public:
  Spec();
  ~Spec();
  Spec(Spec&&) noexcept;
  Spec& operator=(Spec&&) noexcept;

  // A decimal integer.
  IntKey Int(std::string key, int64_t* field, std::string doc);
  // A finite number.
  FloatKey Float(std::string key, double* field, std::string doc);
  // true or false.
  void Bool(std::string key, bool* field, std::string doc);
  // Valid UTF-8. Any YAML scalar is accepted, as it is written: `name: 12` is the text "12".
  StringKey String(std::string key, std::string* field, std::string doc);
  // A list of texts, or one text, which is a list of one, or of none if it is empty. In an override brackets mean a
  // list, key=[a, b], and anything else is one text.
  ListKey Strings(std::string key, std::vector<std::string>* field, std::string doc);
  // One of the names. The field must hold one of the values, which must differ from each other.
  template <class T>
  void Choice(const std::string& key, T* field, std::vector<std::pair<std::string, std::type_identity_t<T>>> choices,
              const std::string& doc);

  // A constraint over several keys, which must be bound. Load() checks it once the fields are filled, unless one of
  // `keys` is invalid by itself. It returns one sentence for each violation, saying what would be right; the report
  // prefixes the keys, their values and where the first of them was given.
  void Check(std::vector<std::string> keys, std::function<std::vector<std::string>()> check);

  // While `when` holds for the fields, `keys`, which must be bound, have no meaning: Load() refuses those that are
  // given, with `why` in the message, and Dump() leaves them out. A key given as its default or as the number 0, which
  // switches it off, says the same as no key, and is not refused.
  void Unused(std::vector<std::string> keys, std::function<bool()> when, std::string why);

  // Another name of `key`, which must be bound. A file or an override may use either, or both for the same value.
  void Alias(std::string other, std::string key);
  // The same for all that is in a section: `other`.x is another name of `section`.x, whether it is a key or an alias.
  void AliasSection(std::string other, std::string section);
  // A name that gives several keys, which must be bound, where they are not given themselves: a list one item to each
  // key, a single value the same to all.
  void Spread(std::string other, std::vector<std::string> keys);
  // Gives `key`, which must be bound, the text that `derive` makes of `from`: other programs' keys, and the keys here
  // that these act on. `derive` gets one text for each: empty if it is not given or null, with commas between the items
  // of a list, "{}" for a section. `key` keeps its value if none of the others is given, if the result is nothing, or
  // if it is given on the command line and they are not. A value of `key` beside another that is derived is a
  // violation, unless `key` itself is among `from`.
  using Derivation = std::function<std::optional<std::string>(std::span<const std::string> given)>;
  void Derive(std::string key, std::vector<std::string> from, Derivation derive);
  // Another way to write the value `value` of `key`, which must be bound, such as another program's name of a choice,
  // in upper or lower case.
  void AliasValue(absl::string_view key, absl::string_view other, std::string value);
  // A value that other programs have for `key`, a bound choice, and that is none here: the message about it ends with
  // `why`.
  void RefuseValue(absl::string_view key, absl::string_view other, std::string why);

  // A key or a section that other programs have and that means nothing here, for the reason `why`. Load() refuses it,
  // or skips it if asked to be lenient. A null changes nothing and is skipped, and so are a section of nulls, one
  // with `enable` or `enabled` false, and a value of `harmless`, a list of values that ask for what this program does
  // anyway. The innermost of nested names counts, and a bound key inside a section is as any other. Notes about names
  // are in the order of these calls.
  void Ignore(std::string name, std::string why, std::vector<std::string> harmless = {});
  // The same for one that would change results, so that it may not be skipped: Load() always refuses it, unless its
  // value is null or harmless.
  void Refuse(std::string name, std::string why, std::vector<std::string> harmless = {});

  // Keys of other programs whose values Load() only keeps, bound in a Spec of their own, which documents and dumps
  // nothing. They must not be bound here. What Ignore() and Refuse() say about them holds nevertheless, and a value of
  // the wrong kind is a violation.
  Spec& kept();
  const Spec* kept_keys() const { return kept_.get(); }  // nullptr: none

  // The bindings in the order in which they were made; nullptr for an unknown key.
  const std::vector<std::unique_ptr<Binding>>& bindings() const { return bindings_; }
  Binding* Find(absl::string_view key) const;
  // Whether keys are bound in the section.
  bool HasSection(absl::string_view section) const;

  struct Constraint {
    std::vector<std::string> keys;
    std::function<std::vector<std::string>()> check;
  };
  const std::vector<Constraint>& constraints() const { return constraints_; }
  struct UnusedKeys {
    std::vector<std::string> keys;
    std::function<bool()> when;
    std::string why;
  };
  const std::vector<UnusedKeys>& unused_keys() const { return unused_keys_; }
  struct OtherName {
    std::string other;
    std::string name;  // of a key or a section
  };
  const std::vector<OtherName>& aliases() const { return aliases_; }
  const std::vector<OtherName>& section_aliases() const { return section_aliases_; }
  struct SpreadKeys {
    std::string other;
    std::vector<std::string> keys;
  };
  const std::vector<SpreadKeys>& spreads() const { return spreads_; }
  struct DerivedKey {
    std::string key;
    std::vector<std::string> from;
    Derivation derive;
  };
  const std::vector<DerivedKey>& derived() const { return derived_; }
  struct Meaningless {
    std::string name;  // of a key or a section
    std::string why;
    std::vector<std::string> harmless;
    bool may_be_skipped = true;
  };
  const std::vector<Meaningless>& meaningless() const { return meaningless_; }

 private:
  template <class B, class... Args>
  B& Bind(std::string key, std::string doc, Args... args);
  void BindChoice(std::string key, std::vector<std::string> names, std::function<void(size_t)> set,
                  std::function<size_t()> get, std::string doc);
  // `other` is free to be a name besides those that are bound.
  void CheckOtherName(const std::string& other) const;

  std::vector<std::unique_ptr<Binding>> bindings_;
  std::vector<Constraint> constraints_;
  std::vector<UnusedKeys> unused_keys_;
  std::vector<OtherName> aliases_;
  std::vector<OtherName> section_aliases_;
  std::vector<SpreadKeys> spreads_;
  std::vector<DerivedKey> derived_;
  std::vector<Meaningless> meaningless_;
  std::unique_ptr<Spec> kept_;
};

// Limits on what reading a configuration may cost.
struct Limits {
  int64_t max_bytes = int64_t{1} << 20;  // of the text, and of what references add to it
  int max_depth = 32;                    // nesting of sections, lists and references
  int max_keys = 10'000;                 // keys in a file
  int max_items = 10'000;                // items of all lists in a file, or of one override
  int max_reported = 100;                // violations reported one by one; the rest are counted
  int max_notes = 39;                    // the same for notes
};

// What is wrong with the values of several keys together.
struct Conflict {
  std::vector<std::string> keys;
  std::string what;  // one sentence
};

struct LoadOptions {
  Limits limits = {};
  // Skips keys that are unknown, that mean nothing here (Spec::Ignore()) or nothing beside other keys (Spec::Unused()),
  // instead of refusing them.
  bool lenient = false;
  // Called with one line for each reason for which keys are skipped: where the first of them was given, its name and
  // the reason, and the others' names. Unknown keys come first, then keys without effect beside others, then keys of
  // Spec::Ignore(). May be null.
  std::function<void(const std::string& line)> note = nullptr;
  // What a look at all fields finds, beside the constraints; called last. Conflicts are left out whose keys are invalid
  // by themselves, or all in one constraint that failed. May be null.
  std::function<std::vector<Conflict>()> later = nullptr;
  // Where else an unknown key is known, for the message about it; empty: nowhere. May be null.
  std::function<std::string(absl::string_view key)> elsewhere = nullptr;
};

// Fills the fields from `yaml`, then from `overrides`; if a key is overridden twice, the last value counts, and a value
// that is overridden is not looked at. A key that is null keeps its default. `name` stands for the YAML text in
// messages.
//
// An override is key=value, +key=value or ++key=value, which are all the same. Its value is taken as it is (no YAML
// syntax), with three exceptions: null; quotes around it, 'x' or "x", which make it a text; brackets, if the key takes
// a list.
//
// In values, ${a.b} is the value of another key, given or default, once all overrides are applied. Each dot before the
// name goes up a section, starting from the one that the key is in. ${oc.select:a.b,x} is x if there is no such key. A
// \ before $ makes it text.
//
// All violations are reported together in one InvalidArgument, one line each: where the key was given ("name:line" or
// "command line"), the key, what was given and what would be right. After an error the fields hold some of what was
// given: discard them. Violations are unknown keys (with the nearest known one), keys without meaning here, wrong
// types, values out of range, keys given twice, references that lead nowhere or round in a circle, failed constraints,
// and text that is not YAML or exceeds the limits. YAML anchors, aliases and tags are refused, and so are Hydra's list
// of defaults, its own section, and _target_.
absl::Status Load(const Spec& spec, absl::string_view yaml, absl::string_view name,
                  std::span<const std::string> overrides, const LoadOptions& options = {});

// The fields in use as YAML, which loads back to the same values.
std::string Dump(const Spec& spec);

// The value of the field of `key` on one line of YAML; nothing for a key that is not bound.
std::optional<std::string> ValueOf(const Spec& spec, absl::string_view key);

// The same for all fields in use, by key.
std::map<std::string, std::string> Values(const Spec& spec);

// The same of YAML that Dump() wrote, possibly for another version's fields. The items of lists in lists are left out.
// InvalidArgument, with line and column, for text that is not such YAML or exceeds the limits.
absl::StatusOr<std::map<std::string, std::string>> ValuesIn(absl::string_view yaml, absl::string_view name);

// Cells of the row that documents one key in a Markdown table.
struct KeyRow {
  std::string key, type, default_value, meaning;
  friend bool operator==(const KeyRow&, const KeyRow&) = default;
};
std::vector<KeyRow> KeyRows(const Spec& spec);

// A Markdown table of key, type, default and meaning.
std::string Reference(const Spec& spec);

template <class T>
void Spec::Choice(const std::string& key, T* field,
                  std::vector<std::pair<std::string, std::type_identity_t<T>>> choices, const std::string& doc) {
  std::vector<std::string> names;
  std::vector<T> values;
  for (auto& [choice, value] : choices) {
    names.push_back(std::move(choice));
    values.push_back(std::move(value));
  }
  auto get = [field, values] {
    size_t i = 0;
    while (i < values.size() && !(values[i] == *field)) ++i;
    return i;
  };
  auto set = [field, values](size_t i) { *field = values[i]; };
  BindChoice(key, std::move(names), std::move(set), std::move(get), doc);
}

}  // namespace tdock::config
