// The names by which a file or an override may give a key. Internal to this module.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "core/config/binding.h"
#include "core/config/spec.h"

namespace tdock::config {

// `inner` is in the section `outer`, or deeper.
bool IsInside(absl::string_view inner, absl::string_view outer);

// The names of the keys of a Spec, which must outlive this. Thread-safe.
class Names {
 public:
  explicit Names(const Spec& spec);

  // What `name` is another name of, be it a key, a section or unknown; otherwise `name` itself.
  std::string OurName(absl::string_view name) const;

  // The next four take our names. Find() is nullptr if no key is bound to this name.
  Binding* Find(absl::string_view key) const;
  // True for a name that gives other keys their values: Spec::Spread() or Spec::Derive().
  bool IsSpread(absl::string_view key) const { return spreads_.contains(key); }
  // What the Spec, or what is known of Hydra, says about a key or section without meaning here, or the innermost such
  // section around it; nullptr if nothing.
  const Spec::Meaningless* FindMeaningless(absl::string_view key) const;
  // Whether it is a section around a key.
  bool IsSection(absl::string_view key) const { return sections_.contains(key); }

  // Of a section, by any of its names.
  std::string FirstKeyIn(absl::string_view section) const;
  // The known name that the unknown `name` is likely to stand for, if any.
  std::optional<std::string> Nearest(absl::string_view name) const;
  // "did you mean a.b?", or the reason why another program's key with the last word of `name` means nothing here, or
  // else the keys in its section.
  std::string Advice(absl::string_view name) const;

 private:
  std::string Siblings(absl::string_view key) const;

  const Spec& spec_;
  std::vector<std::string> known_;  // every name of every key, and of those that spread, with ours first
  absl::flat_hash_map<std::string, Binding*> bindings_;
  absl::flat_hash_map<std::string, std::string> aliases_;
  absl::flat_hash_set<std::string> spreads_;
  absl::flat_hash_set<std::string> sections_;
  absl::flat_hash_map<std::string, Spec::Meaningless> meaningless_;
  const Spec::Meaningless python_;
};

}  // namespace tdock::config
