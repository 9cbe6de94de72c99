// Goal: a process that holds the fleet's secret and sends nonsense over its link loses the link,
// and the creditor goes on to serve the others.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/lending/lending_wire.h"
#include "common/lending/link_dialer.h"
#include "common/transfer/call_channel.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

// A debtor that sends bytes of the test's choice.
class HostileDebtor : public transfer::CallHandler {
 public:
  HostileDebtor(const CreditorNode& creditor, const std::string& host) {
    auto dialer =
        *LinkDialer::Start({.self = {.node = NodeId("hostile"), .incarnation = Incarnation(1)},
                            .host = host,
                            .fleet_secret = "secret"},
                           creditor.address(), absl::Now());
    std::unique_ptr<transfer::MessageLink> link;
    while (link == nullptr) link = *dialer->Poll(absl::Now());
    channel_ = *transfer::CallChannel::Create(RealClock(), {});
    peer_ = *channel_->AddPeer(std::move(link));
  }
  void OnRequest(transfer::CallPeer, transfer::CallId, absl::Span<const std::byte>) override {}
  void OnResponse(transfer::CallId, absl::StatusOr<absl::Span<const std::byte>> bytes) override {
    if (bytes.ok()) response_.assign(bytes->begin(), bytes->end());
  }
  void OnPeerLost(transfer::CallPeer, const absl::Status&) override { is_lost_ = true; }

  // Sends a request, and waits for the response or the link's end. Empty: the link has ended.
  std::vector<std::byte> Ask(const std::vector<std::byte>& request) {
    const absl::Span<const std::byte> piece = request;
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    EXPECT_TRUE(channel_->Call(peer_, {&piece, 1}, give_up).ok());
    response_.clear();
    while (response_.empty() && !is_lost_ && absl::Now() < give_up) channel_->Wait(*this, give_up);
    EXPECT_TRUE(is_lost_ || !response_.empty());
    return response_;
  }

 private:
  std::unique_ptr<transfer::CallChannel> channel_;
  transfer::CallPeer peer_;
  std::vector<std::byte> response_;
  bool is_lost_ = false;
};

std::vector<std::byte> Request(RequestKind kind, uint32_t count, const std::string& rest) {
  const MessageHead head = {.kind = kind, .count = count};
  std::vector<std::byte> bytes(sizeof head + rest.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  if (!rest.empty()) std::memcpy(bytes.data() + sizeof head, rest.data(), rest.size());
  return bytes;
}

std::string AsText(const AttendPart& part, size_t floats) {
  return std::string(reinterpret_cast<const char*>(&part), sizeof part) +
         std::string(floats * sizeof(float), '\0');
}

TEST(HostileDebtorTest, MalformedMessagesCostTheirLinkOnly) {
  const auto random = NewSeededRandom(40);
  CreditorNode creditor({});
  DebtorNode honest({});
  honest.Borrow(creditor, 1, {.first = 0, .end = 1}, 10);
  AttendPart part = {.loan = 1,
                     .first_position = 0,
                     .layer = 0,
                     .first_unit = 0,
                     .end_unit = 1,
                     .num_rows = 1,
                     .q_floats = kQFloats,
                     .answer_bytes = 16};
  AttendPart no_rows = part, long_answer = part;
  no_rows.num_rows = 0;
  long_answer.answer_bytes = UINT32_MAX;
  const std::vector<std::vector<std::byte>> requests = {
      Request(static_cast<RequestKind>(9), 1, "12345678"),
      Request(RequestKind::kAttend, 0, ""),
      Request(RequestKind::kAttend, UINT32_MAX, AsText(part, kQFloats)),
      Request(RequestKind::kAttend, 1, AsText(part, kQFloats - 1)),
      Request(RequestKind::kAttend, 1, AsText(no_rows, kQFloats)),
      Request(RequestKind::kAttend, 1, AsText(long_answer, kQFloats)),
      Request(RequestKind::kRenew, 2, "12345678"),
      Request(RequestKind::kReturn, 1, "1234567"),
      std::vector<std::byte>(1),
  };
  int64_t refusals = 0;
  for (const auto& request : requests) {
    for (const std::string host : {"host", "elsewhere"}) {
      HostileDebtor hostile(creditor, host);
      EXPECT_TRUE(hostile.Ask(request).empty());
      EXPECT_EQ(creditor.service->counters().refusals, ++refusals);
    }
    Layer layer(0);
    layer.Add(1, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
    layer.Exchange(*honest.links);
    EXPECT_TRUE(layer.IsAllRight());
  }
}

TEST(HostileDebtorTest, WellFormedNonsenseIsAnsweredWithAnErrorForEachPart) {
  CreditorNode creditor({});
  const LoanKey key = {.debtor = {.node = NodeId("hostile"), .incarnation = Incarnation(1)},
                       .loan = LoanId(1)};
  creditor.service->Handle(
      ServeLoan{.key = key, .units = {.first = 0, .end = 1}, .blocks = BlocksFrom(10, 2)});
  const AttendPart good = {.loan = 1,
                           .first_position = 0,
                           .layer = 0,
                           .first_unit = 0,
                           .end_unit = 1,
                           .num_rows = 1,
                           .q_floats = kQFloats,
                           .answer_bytes = 16};
  std::vector<AttendPart> parts(6, good);
  parts[1].loan = 2;
  parts[2].layer = kNumLayers;
  parts[3].end_unit = 2;
  parts[4].answer_bytes = 15;
  parts[5].q_floats = kQFloats + 1;
  std::string rest;
  size_t floats = 0;
  for (const AttendPart& part : parts) {
    rest += AsText(part, 0);
    floats += part.q_floats;
  }
  rest += std::string(floats * sizeof(float), '\0');
  HostileDebtor hostile(creditor, "host");
  const auto response = hostile.Ask(Request(RequestKind::kAttend, 6, rest));
  auto reader = ResponseReader::Read(response, RequestKind::kAttend, 6);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Next().code, absl::StatusCode::kOk);
  EXPECT_EQ(reader->Next().code, absl::StatusCode::kNotFound);
  for (int i = 2; i < 6; ++i) {
    const ResponseReader::Entry entry = reader->Next();
    EXPECT_EQ(entry.code, absl::StatusCode::kInvalidArgument) << i;
    EXPECT_LE(entry.bytes.size(), parts[i].answer_bytes);
  }
}

}  // namespace
}  // namespace tandem::lending
