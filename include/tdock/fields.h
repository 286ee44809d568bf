// Lists of fields. A struct names its fields once more, in a list at its end, and whatever goes through all of them
// (messages, images, differences, JSON, Python) visits that list:
//
//   struct Piece {
//     int64_t end = 0;
//     int64_t weights_version = kNoWeightsVersion;
//
//     TDOCK_FIELDS(Piece, end, weights_version)
//   };
//
// A list that lacks a field does not compile. Messages number the fields in the order of the list, so new fields are
// added at its end.
#pragma once

#include <cstddef>
#include <type_traits>

namespace tdock {

// A struct with a list.
template <class T>
concept HasFields = requires { &std::remove_const_t<T>::CheckFields; };

// Calls visit(name, value…) for each field of an object, or of several objects of one type.
template <class Visit, HasFields First, class... More>
constexpr void ForEachField(Visit&& visit, First& first, More&... more) {
  std::remove_const_t<First>::VisitFields(
      [&](const char* name, auto field) { visit(name, first.*field, (more.*field)...); });
}

template <HasFields T>
constexpr size_t CountFields() {
  size_t count = 0;
  T::VisitFields([&](const char*, auto) { ++count; });
  return count;
}

}  // namespace tdock

// The binding names every field, or does not compile.
#define TDOCK_FIELDS(Struct, ...)                                                                  \
  using Self = Struct;                                                                             \
  static void CheckFields(const Struct& all) { [[maybe_unused]] const auto& [__VA_ARGS__] = all; } \
  template <class Visit>                                                                           \
  static constexpr void VisitFields(const Visit& visit) {                                          \
    TDOCK_FOR_EACH(TDOCK_VISIT_FIELD, __VA_ARGS__)                                                 \
  }

#define TDOCK_VISIT_FIELD(field) visit(#field, &Self::field);

// TDOCK_FOR_EACH(macro, a, b, …) is macro(a) macro(b) …, for up to 64 arguments: the preprocessor looks at an argument
// again each time that it passes through a macro.
#define TDOCK_FOR_EACH(macro, ...) __VA_OPT__(TDOCK_AGAIN(TDOCK_EACH_FIELD(macro, __VA_ARGS__)))
#define TDOCK_EACH_FIELD(macro, first, ...) \
  macro(first) __VA_OPT__(TDOCK_NEXT_FIELD TDOCK_PARENTHESES(macro, __VA_ARGS__))
#define TDOCK_NEXT_FIELD() TDOCK_EACH_FIELD
#define TDOCK_PARENTHESES ()
#define TDOCK_AGAIN(...) TDOCK_AGAIN_16(TDOCK_AGAIN_16(TDOCK_AGAIN_16(TDOCK_AGAIN_16(__VA_ARGS__))))
#define TDOCK_AGAIN_16(...) TDOCK_AGAIN_4(TDOCK_AGAIN_4(TDOCK_AGAIN_4(TDOCK_AGAIN_4(__VA_ARGS__))))
#define TDOCK_AGAIN_4(...) TDOCK_AGAIN_1(TDOCK_AGAIN_1(TDOCK_AGAIN_1(TDOCK_AGAIN_1(__VA_ARGS__))))
#define TDOCK_AGAIN_1(...) __VA_ARGS__
