// Goal: an exchange gives the right answer each time, and its time is printed: one row of 576
// floats, an answer of 2.4 KB, both ends spinning.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

constexpr int64_t kRowFloats = 576;
constexpr size_t kRowAnswerBytes = 2400;

// Computes nothing: what remains is the exchange.
class EchoAttention : public engine::PartialAttention {
 public:
  int64_t q_floats() const override { return kRowFloats; }
  int64_t AnswerBytes(int32_t, const engine::UnitSpan&, int32_t num_rows) const override {
    return num_rows * static_cast<int64_t>(kRowAnswerBytes);
  }
  absl::Status Compute(const engine::PartialQuery& query, absl::Span<std::byte> answer) override {
    std::memset(answer.data(), static_cast<int>(query.q[0]), answer.size());
    return absl::OkStatus();
  }
};

TEST(RoundTripTest, AnExchangeOfOneRowIsTimedOverBothKindsOfLinks) {
  LendingServiceOptions options;
  options.node = NodeId("creditor");
  options.tcp_host = "127.0.0.1";
  options.compute_share = 1;
  options.spin = absl::Milliseconds(5);
  const auto service = *LendingService::Start(options, std::make_unique<EchoAttention>(),
                                              RealClock(), [](LendingEvent) {});
  for (const std::string host : {"host", "elsewhere"}) {
    CreditorLinksOptions links_options;
    links_options.self = {.node = NodeId(host), .incarnation = Incarnation(1)};
    links_options.host = host;
    links_options.spin = absl::Milliseconds(5);
    const auto links = *CreditorLinks::Create(links_options, RealClock());
    service->Handle(ServeLoan{.key = {.debtor = links_options.self, .loan = LoanId(1)},
                              .units = {.first = 0, .end = 16},
                              .blocks = BlocksFrom(0, 256)});
    links->Handle(UseLoan{.loan = LoanId(1),
                          .creditor = {.node = options.node,
                                       .incarnation = options.incarnation,
                                       .host = "host",
                                       .lending_address = service->address()}});
    std::vector<float> q(kRowFloats);
    std::vector<std::byte> answer(kRowAnswerBytes);
    std::vector<double> micros;
    for (int i = 0; i < 1500; ++i) {
      q[0] = static_cast<float>(i % 100);
      engine::RemotePart part;
      part.lent = {.loan = LoanId(1), .units = {.first = 0, .end = 16}};
      part.num_rows = 1;
      part.q = q.data();
      part.q_stride = part.q_floats = kRowFloats;
      part.answer = absl::MakeSpan(answer);
      const absl::Time began = RealClock().Now();
      links->Ask({&part, 1});
      links->Collect({&part, 1});
      const absl::Time ended = RealClock().Now();
      ASSERT_TRUE(part.status.ok()) << part.status;
      ASSERT_EQ(answer.back(), static_cast<std::byte>(i % 100));
      if (i >= 300) micros.push_back(absl::ToDoubleMicroseconds(ended - began));
      if (i % 30 == 0) links->Progress();
    }
    std::sort(micros.begin(), micros.end());
    std::printf("round trip over %s: p50 %.2f us, p90 %.2f us, p99 %.2f us\n",
                host == "host" ? "shared memory" : "TCP", micros[micros.size() / 2],
                micros[micros.size() * 9 / 10], micros[micros.size() * 99 / 100]);
  }
}

}  // namespace
}  // namespace tandem::lending
