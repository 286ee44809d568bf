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
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace tdock::config {

class Binding;
class IntBinding;
class FloatBinding;
class StringBinding;

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

 private:
  StringBinding& binding_;
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
  // One of the names. The field must hold one of the values, which must differ from each other.
  template <class T>
  void Choice(const std::string& key, T* field, std::vector<std::pair<std::string, std::type_identity_t<T>>> choices,
              const std::string& doc);

  // A constraint over several keys, which must be bound. Load() checks it once the fields are filled, unless one of
  // `keys` is invalid by itself. It returns one sentence for each violation, saying what would be right; the report
  // prefixes the keys, their values and where the first of them was given.
  void Check(std::vector<std::string> keys, std::function<std::vector<std::string>()> check);

  // While `when` holds for the fields, `keys`, which must be bound, have no meaning: Load() refuses those that are
  // given, with `why` in the message, and Dump() leaves them out.
  void Unused(std::vector<std::string> keys, std::function<bool()> when, std::string why);

  // The bindings in the order in which they were made; nullptr for an unknown key.
  const std::vector<std::unique_ptr<Binding>>& bindings() const { return bindings_; }
  Binding* Find(absl::string_view key) const;

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

 private:
  template <class B, class... Args>
  B& Bind(std::string key, std::string doc, Args... args);
  void BindChoice(std::string key, std::vector<std::string> names, std::function<void(size_t)> set,
                  std::function<size_t()> get, std::string doc);

  std::vector<std::unique_ptr<Binding>> bindings_;
  std::vector<Constraint> constraints_;
  std::vector<UnusedKeys> unused_keys_;
};

// Limits on what reading a configuration may cost.
struct Limits {
  int64_t max_bytes = int64_t{1} << 20;
  int max_depth = 32;      // nesting of sections and lists
  int max_keys = 10'000;   // keys in a file
  int max_reported = 100;  // violations reported one by one; the rest are counted
};

// Fills the fields from `yaml`, then from `overrides`, each "a.b=value" with the value taken literally (no YAML
// syntax); if a key is overridden twice, the last value counts. `name` stands for the YAML text in messages.
//
// All violations are reported together in one InvalidArgument, one line each: where the key was given ("name:line" or
// "command line"), the key, what was given and what would be right. After an error the fields hold some of what was
// given: discard them. Violations are unknown keys (with the nearest known one), wrong types, values out of range,
// duplicate keys, failed constraints, and text that is not YAML or exceeds the limits. YAML anchors, aliases and tags
// are refused.
absl::Status Load(const Spec& spec, absl::string_view yaml, absl::string_view name,
                  std::span<const std::string> overrides, const Limits& limits = {});

// The same from a file.
absl::Status LoadFile(Env& env, const Spec& spec, const std::string& path, std::span<const std::string> overrides,
                      const Limits& limits = {});

// The fields in use as YAML, which loads back to the same values.
std::string Dump(const Spec& spec);

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
