#include "core/rpc/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "core/rpc/testing/http2.h"

namespace tdock::rpc {
namespace {

using testing::HasSubstr;
using Verdict = Admission::Verdict;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kEndStream = 1, kEndHeaders = 4, kPadded = 8, kPriority = 32;

AdmissionRules Rules() {
  return {.token = "open sesame", .check_health = [](absl::string_view request) -> absl::StatusOr<std::string> {
            if (request.empty()) return "\x08\x01";
            return absl::NotFoundError("50% of nothing");
          }};
}

struct Judged {
  Verdict verdict;
  std::string answer;
};

// As it comes: byte by byte.
Judged Judge(const std::string& bytes, const AdmissionRules& rules = Rules()) {
  Admission admission(rules);
  Verdict verdict = Verdict::kOpen;
  for (size_t size = 0; size <= bytes.size(); ++size)
    verdict = admission.Look(absl::string_view(bytes).substr(0, size));
  Admission at_once(rules);
  EXPECT_EQ(at_once.Look(bytes), verdict);
  EXPECT_EQ(at_once.answer(), admission.answer());
  return {verdict, admission.answer()};
}

std::string Right() { return CallFields("/count", "Bearer open sesame"); }
std::string Request(const std::string& fields) { return Frame(1, kEndHeaders, 1, fields); }
std::string Question(absl::string_view message) {
  std::string body(4, '\0');
  body.push_back(static_cast<char>(message.size()));
  return absl::StrCat(body, message);
}

TEST(Admission, LetsInWhoeverShowsTheTokenWhenTheRequestIsThere) {
  const std::string bytes = Opening() + Request(Right());
  const AdmissionRules rules = Rules();
  Admission admission(rules);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(admission.Look(absl::string_view(bytes).substr(0, size)), Verdict::kOpen) << size;
  }
  EXPECT_EQ(admission.Look(bytes), Verdict::kAdmit);
  EXPECT_EQ(admission.Look(bytes + "whatever"), Verdict::kAdmit);
}

TEST(Admission, LetsInEveryRequestWhereNoTokenIsDemanded) {
  EXPECT_EQ(Judge(Opening() + Request(CallFields("/count")), {}).verdict, Verdict::kAdmit);
}

TEST(Admission, TakesWhatAClientMaySendBeforeAndAroundItsFirstRequest) {
  const std::string before = Frame(4, 1, 0, "") + Frame(4, 0, 0, "\1\2\3\4\5\6") + Frame(8, 0, 0, "abcd") +
                             Frame(6, 0, 0, "12345678") + Frame(2, 0, 3, "12345") + Frame(42, 7, 9, "what?");
  EXPECT_EQ(Judge(Opening() + before + Request(Right())).verdict, Verdict::kAdmit);
  const std::string padded = std::string(1, '\3') + "12345" + Right() + "xyz";
  EXPECT_EQ(Judge(Opening() + Frame(1, kEndHeaders | kPadded | kPriority, 1, padded)).verdict, Verdict::kAdmit);
  const std::string fields = Right();
  EXPECT_EQ(Judge(Opening() + Frame(1, 0, 1, fields.substr(0, 9)) + Frame(9, 0, 1, "") +
                  Frame(9, kEndHeaders, 1, fields.substr(9)))
                .verdict,
            Verdict::kAdmit);
}

TEST(Admission, AnswersACallWithoutTheTokenAndTellsWhichWasTheLast) {
  const Judged none = Judge(Opening() + Frame(1, kEndHeaders, 5, CallFields("/count")));
  EXPECT_EQ(none.verdict, Verdict::kAnswered);
  EXPECT_TRUE(absl::StartsWith(none.answer, Frame(4, 1, 0, "") + std::string("\0\0", 2))) << "acknowledges SETTINGS";
  EXPECT_TRUE(absl::EndsWith(none.answer, Frame(7, 0, 0, std::string("\0\0\0\5\0\0\0\0", 8)))) << "ends with GOAWAY";
  EXPECT_LT(none.answer.size(), 400);
  for (const char* wrong : {"Bearer open sesam", "open sesame", "bearer open sesame", "Bearer "}) {
    EXPECT_EQ(Judge(Opening() + Request(CallFields("/count", wrong))).verdict, Verdict::kAnswered) << wrong;
  }
  EXPECT_EQ(Judge(Opening() + Request(CallFields("/grpc.health.v1.Health/Watch"))).verdict, Verdict::kAnswered);
}

TEST(Admission, AnswersHealthChecksWithoutTheToken) {
  const std::string check = Opening() + Request(CallFields(kCheck));
  EXPECT_EQ(Judge(check).verdict, Verdict::kOpen);
  const Judged healthy = Judge(check + Frame(0, 0, 1, Question("")) + Frame(0, kEndStream, 1, ""));
  EXPECT_EQ(healthy.verdict, Verdict::kAnswered);
  EXPECT_THAT(healthy.answer, HasSubstr(Frame(0, 0, 1, std::string("\0\0\0\0\2\x08\x01", 7))));
  const Judged unknown = Judge(check + Frame(0, kEndStream, 1, Question("\x0a\x05other")));
  EXPECT_EQ(unknown.verdict, Verdict::kAnswered);
  EXPECT_EQ(Judge(Opening() + Frame(1, kEndHeaders | kEndStream, 1, CallFields(kCheck))).verdict, Verdict::kAnswered);
  EXPECT_EQ(Judge(check + Frame(0, kEndStream, 1, "\1\0\0\0\0")).verdict, Verdict::kAnswered);
  EXPECT_EQ(Judge(check + Request(CallFields(kCheck))).verdict, Verdict::kRefused);
}

TEST(Admission, RefusesWhatIsNoFirstRequest) {
  const std::string right = Request(Right());
  for (const std::string& bytes : {
           std::string("GET / HTTP/1.1\r\n\r\n"),
           std::string("\x16\x03\x01", 3),
           absl::StrCat(kHttp2Preface, right),                            // no SETTINGS
           absl::StrCat(kHttp2Preface, Frame(4, 1, 0, ""), right),        // nothing to acknowledge
           Opening() + Frame(4, 0, 0, "12345"),                           // a setting has six bytes
           Opening() + Frame(4, 1, 0, "123456"),                          //
           Opening() + Frame(4, 0, 1, ""),                                //
           Opening() + Frame(6, 0, 0, "1234567"),                         //
           Opening() + Frame(8, 0, 1, "abcd"),                            // of a stream that is not there
           Opening() + Frame(2, 0, 0, "12345"),                           //
           Opening() + Frame(0, 0, 1, "data"),                            //
           Opening() + Frame(3, 0, 1, "1234"),                            //
           Opening() + Frame(5, kEndHeaders, 1, Right()),                 //
           Opening() + Frame(7, 0, 0, "12345678"),                        //
           Opening() + Frame(9, kEndHeaders, 1, Right()),                 //
           Opening() + Frame(1, kEndHeaders, 2, Right()),                 // a stream of the server's
           Opening() + Frame(1, kEndHeaders, 0, Right()),                 //
           Opening() + Frame(1, kEndHeaders | kPadded, 1, ""),            //
           Opening() + Frame(1, kEndHeaders | kPadded, 1, "\x7fpad"),     //
           Opening() + Frame(1, kEndHeaders | kPriority, 1, "1234"),      //
           Opening() + Frame(1, kEndHeaders, 1, "\xff\xff\xff\xff\xff"),  // no HPACK
           Opening() + Frame(1, kEndHeaders, 1, "\xbe"),                  // an index that stands for nothing
           Opening() + Frame(1, 0, 1, Right()) + Frame(6, 0, 0, "12345678"),
           Opening() + Frame(1, 0, 1, Right()) + Frame(9, kEndHeaders, 3, ""),
           Opening() + std::string("\0\x40\1\1\4\0\0\0\1", 9),  // longer than a frame may be
       }) {
    EXPECT_EQ(Judge(bytes).verdict, Verdict::kRefused) << testing::PrintToString(bytes);
  }
}

TEST(Admission, RefusesMoreThanARequestTakes) {
  std::string pings = Opening();
  while (pings.size() < Admission::kMostBytes) pings += Frame(6, 0, 0, "12345678");
  EXPECT_EQ(Judge(pings).verdict, Verdict::kRefused);
  std::string continued = Opening() + Frame(1, 0, 1, Right());
  while (continued.size() < Admission::kMostBytes) continued += Frame(9, 0, 1, "");
  EXPECT_EQ(Judge(continued).verdict, Verdict::kRefused);
  // A field of 4 KiB that goes into the table, and one byte for each time that it comes again.
  const std::string large = "\x40\x01x\x7f\xa1\x1e" + std::string(4000, 'y');
  EXPECT_EQ(Judge(Opening() + Request(large + std::string(7, '\xbe') + Right())).verdict, Verdict::kAdmit);
  EXPECT_EQ(Judge(Opening() + Request(large + std::string(10'000, '\xbe') + Right())).verdict, Verdict::kRefused);
}

}  // namespace
}  // namespace tdock::rpc
