// For tests: whether a sanitizer looks on, which slows everything down and keeps freed memory.
#pragma once

namespace tdock {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tdock
