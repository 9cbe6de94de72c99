// Goal: a large batch never has more than a slice of its sequences before the core, so that what
// others ask meanwhile is not behind all of it; every prompt's turn comes; a batch with one bad
// prompt is refused before any of it is submitted. An answer that was prepared on another thread
// begins on its exchange's, and leaves nothing behind when it never begins or its client has gone.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "router/front_end/http/api_answer.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

class Exchange final : public HttpExchange {
 public:
  void Post(absl::AnyInvocable<void()> work) override {
    posted.push_back(std::move(work));
    if (runs_posted) RunPosted();
  }
  void RunPosted() {
    for (auto& work : std::exchange(posted, {})) work();
  }
  void RunOrPost(absl::AnyInvocable<void()> work) override { work(); }
  void Wait(std::shared_ptr<PendingAnswer> answer) override {
    if (gone) return answer->OnGone();
    pending_ = std::move(answer);
  }
  void Reply(HttpReply reply) override { replies.push_back(std::move(reply)); }
  void BeginStream(const HttpReply&) override {}
  void WriteStream(absl::string_view) override {}
  void EndStream(bool, absl::string_view) override {}
  bool writing() const override { return false; }

  // As a connection does: the answer holds its exchange.
  void Forget() { pending_ = nullptr; }

  std::vector<HttpReply> replies;
  std::vector<absl::AnyInvocable<void()>> posted;
  bool runs_posted = true;
  bool gone = false;

 private:
  std::shared_ptr<PendingAnswer> pending_;
};

class BatchSlices : public ::testing::Test {
 protected:
  void TearDown() override { exchange_->Forget(); }
  void Start(int prompts, int n, int bad = -1, bool on_long_work = false) {
    ApiRequest api;
    api.kind = ApiKind::kCompletion;
    for (int i = 0; i < prompts; ++i) {
      v1::GenerateRequest request;
      request.set_text(i == bad ? "" : absl::StrCat("prompt ", i));
      request.set_request_id(absl::StrCat("r", i));
      request.set_n(n);
      request.mutable_stop()->set_max_tokens(1);
      api.requests.push_back(std::move(request));
    }
    ApiAnswer::Start(std::move(api), exchange_, parts_.Session(inbox_, constraints_, long_work_),
                     {}, {RealClock().Now(), "", LoadShedder::FrontEndKind::kHttp}, on_long_work);
  }
  // The core takes the oldest request that waits, and ends each of its sequences.
  void TakeOne() {
    SubmitRequest submit = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    ahead_ -= submit.input.sequences_at_once();
    const std::shared_ptr<AnswerSession> session = std::move(submit.session);
    session->Accepted();
    session->Flush(true);
    for (int i = 0; i < submit.input.sequences; ++i) {
      SequenceDone done;
      done.sequence_index = i;
      done.last = i + 1 == submit.input.sequences;
      done.reason = request::FinishReason::kLength;
      session->OnEvent(done);
    }
    session->Flush(true);
    ++taken_;
  }

  FrontEndParts parts_;
  std::vector<SubmitRequest> waiting_;
  int64_t ahead_ = 0, most_ahead_ = 0;
  int taken_ = 0;
  Inbox inbox_{4096, [this](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   auto* submit = std::get_if<SubmitRequest>(&item);
                   if (submit == nullptr) continue;
                   ahead_ += submit->input.sequences_at_once();
                   most_ahead_ = std::max(most_ahead_, ahead_);
                   waiting_.push_back(std::move(*submit));
                 }
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  const std::shared_ptr<Exchange> exchange_ = std::make_shared<Exchange>();
};

TEST_F(BatchSlices, OneSliceIsAheadAtATime) {
  Start(1000, 8);
  EXPECT_EQ(waiting_.size(), 8u) << "64 sequences";
  while (!waiting_.empty()) TakeOne();
  EXPECT_EQ(taken_, 1000);
  EXPECT_LE(most_ahead_, 64);
  ASSERT_EQ(exchange_->replies.size(), 1u);
  EXPECT_EQ(exchange_->replies[0].status, 200);
}

TEST_F(BatchSlices, WhatWasPreparedElsewhereBeginsOnItsThread) {
  exchange_->runs_posted = false;
  Start(3, 1, /*bad=*/-1, /*on_long_work=*/true);
  EXPECT_TRUE(waiting_.empty());
  exchange_->RunPosted();
  EXPECT_EQ(waiting_.size(), 3u);
  exchange_->runs_posted = true;
  while (!waiting_.empty()) TakeOne();
  ASSERT_EQ(exchange_->replies.size(), 1u);
  EXPECT_EQ(exchange_->replies[0].status, 200);
}

TEST_F(BatchSlices, WhatIsNeverBegunLeavesNothing) {
  exchange_->runs_posted = false;
  const auto before = exchange_.use_count();
  for (const int bad : {-1, 1}) {
    Start(3, 1, bad, /*on_long_work=*/true);
    EXPECT_GT(exchange_.use_count(), before);
    exchange_->posted.clear();  // as a server that stops does
    EXPECT_EQ(exchange_.use_count(), before) << "an answer and its sessions hold each other";
    exchange_->gone = true;
    Start(3, 1, bad, /*on_long_work=*/true);
    exchange_->RunPosted();
    EXPECT_EQ(exchange_.use_count(), before) << "the answer outlives its client";
    exchange_->gone = false;
  }
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(BatchSlices, APromptOfManySequencesGoesAlone) {
  Start(5, 128);
  EXPECT_EQ(waiting_.size(), 1u);
  while (!waiting_.empty()) TakeOne();
  EXPECT_EQ(taken_, 5);
  EXPECT_EQ(most_ahead_, 128);
}

TEST_F(BatchSlices, OneBadPromptRefusesAllBeforeAnyBegins) {
  Start(500, 1, /*bad=*/400);
  EXPECT_TRUE(waiting_.empty());
  ASSERT_EQ(exchange_->replies.size(), 1u);
  EXPECT_EQ(exchange_->replies[0].status, 400);
  EXPECT_THAT(exchange_->replies[0].body, ::testing::HasSubstr("(prompt 400)"));
}

}  // namespace
}  // namespace tandem::router
