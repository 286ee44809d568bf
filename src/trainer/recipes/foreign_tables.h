// Names that verl, MindSpeed-RL, DeepSpeed, TRL and PEFT have, for field_names.h. Internal to this module.
#pragma once

#include <span>

namespace tdock::trainer {

// Another name of `key`, in recipes that have it.
struct OtherName {
  const char* other;
  const char* key;
};

// Another way to write `value` of `key`.
struct OtherValue {
  const char* key;
  const char* other;
  const char* value;
};

// Keys that mean nothing here, and the reason, for recipes that have all keys that the reason names. The first row of a
// key that is for a recipe counts.
struct ForeignKeys {
  const char* why;
  // With spaces between them. "{a,b}.c" is a.c and b.c; "a=1,2" is a, whose values 1 and 2 mean what happens here.
  const char* names;
};

// Those that may be skipped, the ones that matter most first, and those that may not, because they would change
// results.
std::span<const ForeignKeys> IgnoredKeys();
std::span<const ForeignKeys> RefusedKeys();

// TRL's and PEFT's.
std::span<const OtherName> TrlNames();
std::span<const OtherName> TrlOptimNames();  // of keys in the sections `optim`
std::span<const ForeignKeys> TrlIgnoredKeys();
std::span<const ForeignKeys> TrlRefusedKeys();

}  // namespace tdock::trainer
