// Goal: an engine continues a prompt that an engine of other numerics computed: through the real
// KV transfer, from a (emulated) GPU to each class of the CPU and back, its distributions are those
// of its own prompt within what bf16 caches allow, and its greedy tokens differ only where two were
// as likely. Blocks taken for what they are not, in the sender's order, would not pass.
#include <cmath>
#include <iostream>
#include <random>

#include "absl/synchronization/notification.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/runtime/clock.h"
#include "common/transfer/in_process_transport.h"
#include "common/transfer/transfer_service.h"
#include "kernels/api/backend.h"
#include "tests/golden/cpu_engine/engine_driver.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

constexpr int64_t kPromptTokens = 37;
constexpr int kSteps = 12;
constexpr int kBlockTokens = 16;

using Distributions = std::vector<std::vector<float>>;  // [steps][vocab], log-probabilities

struct Continuation {
  Distributions logprobs;
  std::vector<TokenId> greedy;
};

// "device" or a class of the CPU; nullptr where this machine has none.
std::unique_ptr<Engine> NewEngine(const std::string& name, const model::Checkpoint& checkpoint) {
  absl::StatusOr<std::unique_ptr<Engine>> engine;
  if (name == "device") {
    engine = NewEngineOn(DeviceKind::kEmulated, checkpoint,
                         {.threads = 1, .block_tokens = kBlockTokens});
  } else {
    kernels::IsaClass isa = kernels::IsaClass::kRef;
    EXPECT_TRUE(kernels::ParseIsaClass(name.c_str(), &isa));
    if (kernels::FindBackend(isa) == nullptr) return nullptr;
    CpuEngineOptions options;
    options.threads = 1;
    options.isa = name;
    options.block_tokens = kBlockTokens;
    engine = NewCpuEngine(checkpoint, options);
  }
  EXPECT_OK(engine.status());
  EXPECT_OK((*engine)->AllocateKv(16));
  return *std::move(engine);
}

// Moves `blocks` from one arena to the other's by two transfer services.
absl::Status KvTransfer(Engine& from, Engine& to, absl::Span<const BlockId> source,
                        absl::Span<const BlockId> target, const kv::BlockFormat& receiver_format,
                        absl::Duration within = absl::Seconds(30)) {
  transfer::InProcessNetwork network;
  absl::Notification ended;
  absl::Status status;
  transfer::TransferServiceOptions receiving, sending;
  receiving.kv_transfer.incarnation = Incarnation(1);
  receiving.kv_transfer.format = receiver_format;
  sending.kv_transfer.incarnation = Incarnation(2);
  sending.kv_transfer.format = from.spec().format;
  ASSIGN_OR_RETURN(auto receiver,
                   transfer::TransferService::Create(
                       receiving, NewInProcessTransport(network), to.arena(),
                       [&](transfer::TransferEvent event) {
                         if (const auto* failed = std::get_if<transfer::LeaseFailed>(&event)) {
                           status = failed->status;
                         }
                         if (!ended.HasBeenNotified()) ended.Notify();
                       }));
  ASSIGN_OR_RETURN(auto sender,
                   transfer::TransferService::Create(sending, NewInProcessTransport(network),
                                                     from.arena(), [](transfer::TransferEvent) {}));
  const absl::Time deadline = RealClock().Now() + within;
  RETURN_IF_ERROR(receiver->Submit(transfer::OpenLease{
      LeaseId(1), Epoch(1), 0, std::vector<BlockId>(target.begin(), target.end()), deadline}));
  RETURN_IF_ERROR(sender->Submit(transfer::OpenExport{
      transfer::ExportId(1),
      transfer::PeerAddress{NodeId("r"), Incarnation(1), receiver->address(), "host"}, LeaseId(1),
      Epoch(1), 0, std::vector<BlockId>(source.begin(), source.end()), deadline}));
  for (int layer = 0; layer < from.spec().layout.num_layers; ++layer) {
    RETURN_IF_ERROR(sender->Submit(transfer::PushRange{
        transfer::ExportId(1), 0, static_cast<int32_t>(source.size()), layer, 1}));
  }
  RETURN_IF_ERROR(sender->Submit(transfer::FinishExport{transfer::ExportId(1), {}}));
  ended.WaitForNotification();
  return status;
}

class ExchangeTest
    : public ::testing::TestWithParam<std::pair<const char*, const char*>> {  // prefill, decode
 protected:
  void SetUp() override {
    const uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << "\n";
    std::mt19937_64 random(seed);
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/llama")));
    prefill_ = NewEngine(GetParam().first, *checkpoint_);
    decode_ = NewEngine(GetParam().second, *checkpoint_);
    if (prefill_ == nullptr || decode_ == nullptr) {
      GTEST_SKIP() << "this processor lacks " << GetParam().first << " or " << GetParam().second;
    }
    for (int64_t i = 0; i < kPromptTokens + kSteps; ++i) {
      text_.push_back(static_cast<TokenId>(random() % 144));
    }
  }

  // Feeds the rest of text_ to the decode engine, whose blocks hold the prompt but for its last
  // token.
  absl::StatusOr<Continuation> Decode(const std::vector<BlockId>& blocks) {
    Continuation run;
    DrivenSequence sequence;
    sequence.sampling.temperature = 0;
    sequence.sampling.logprobs = decode_->spec().vocab_size;
    sequence.blocks = blocks;
    sequence.prompt_tokens = kPromptTokens;
    for (int step = 0; step < kSteps; ++step) {
      sequence.tokens.assign(text_.begin(), text_.begin() + kPromptTokens + step);
      sequence.computed = static_cast<int64_t>(sequence.tokens.size()) - 1;
      ASSIGN_OR_RETURN(const SampledToken sampled, ComputeRest(decode_.get(), &sequence, 1));
      std::vector<float>& logprobs =
          run.logprobs.emplace_back(static_cast<size_t>(decode_->spec().vocab_size));
      for (const TopLogprob& top : sampled.top_logprobs) {
        logprobs[static_cast<size_t>(top.token)] = top.logprob;
      }
      run.greedy.push_back(sampled.token);
    }
    return run;
  }

  // The prompt but for its last token, by `engine`, in blocks from `first` on.
  std::vector<BlockId> Prefill(Engine* engine, int32_t first) {
    DrivenSequence sequence;
    sequence.tokens.assign(text_.begin(), text_.begin() + kPromptTokens);
    sequence.prompt_tokens = kPromptTokens;
    sequence.blocks = TakeBlocks(engine->spec(), first, kPromptTokens + kSteps);
    const SequenceSlice slice = SliceOf(sequence, kPromptTokens - 1);
    EXPECT_OK(engine->Step(absl::MakeConstSpan(&slice, 1), [](int) {}).status());
    return sequence.blocks;
  }

  // Root mean square of the difference, and of the first's spread around its mean.
  static std::pair<double, double> Compare(const Distributions& a, const Distributions& b) {
    double errors = 0, squares = 0, sum = 0, count = 0;
    for (size_t s = 0; s < a.size(); ++s) {
      for (size_t t = 0; t < a[s].size(); ++t) {
        errors += std::pow(double{a[s][t]} - b[s][t], 2);
        squares += std::pow(a[s][t], 2);
        sum += a[s][t];
        count += 1;
      }
    }
    return {std::sqrt(errors / count), std::sqrt(squares / count - sum / count * sum / count)};
  }

  std::vector<TokenId> text_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> prefill_, decode_;
};

TEST_P(ExchangeTest, GoesOnWhereTheOtherStopped) {
  EXPECT_EQ(prefill_->spec().format.Contents(), decode_->spec().format.Contents());
  EXPECT_EQ(prefill_->spec().layout, decode_->spec().layout);
  ASSERT_OK_AND_ASSIGN(const Continuation pure, Decode(Prefill(decode_.get(), 0)));
  const std::vector<BlockId> source = Prefill(prefill_.get(), 3);
  const std::vector<BlockId> target = TakeBlocks(decode_->spec(), 8, kPromptTokens + kSteps);
  const size_t prompt_blocks =
      static_cast<size_t>(decode_->spec().layout.BlocksFor(kPromptTokens - 1));
  const auto from = absl::MakeConstSpan(source).subspan(0, prompt_blocks);
  const auto to = absl::MakeConstSpan(target).subspan(0, prompt_blocks);
  ASSERT_OK(KvTransfer(*prefill_, *decode_, from, to, decode_->spec().format));
  ASSERT_OK_AND_ASSIGN(const Continuation mixed, Decode(target));
  const auto [error, spread] = Compare(pure.logprobs, mixed.logprobs);
  std::cout << "rms difference " << error << ", spread " << spread << "\n";
  EXPECT_LT(error, 0.04 * spread);
  for (size_t step = 0; step < pure.greedy.size(); ++step) {
    const std::vector<float>& own = pure.logprobs[step];
    const float gap =
        own[static_cast<size_t>(pure.greedy[step])] - own[static_cast<size_t>(mixed.greedy[step])];
    EXPECT_LT(gap, 0.2 * spread) << "step " << step << ": token " << mixed.greedy[step]
                                 << " instead of " << pure.greedy[step];
  }
  if (prefill_->spec().format.order == decode_->spec().format.order) return;
  // The same bytes under the sender's order: what the reordering is for.
  ASSERT_OK(KvTransfer(*prefill_, *decode_, from, to, prefill_->spec().format));
  const auto confused = Decode(target);
  // The end of a block that is not full may even hold no numbers.
  if (!confused.ok()) return;
  EXPECT_GT(Compare(pure.logprobs, confused->logprobs).first, 2 * error);
}

TEST_P(ExchangeTest, ReceiversRefuseOrdersTheyDoNotKnow) {
  const std::vector<BlockId> source = Prefill(prefill_.get(), 3);
  kv::BlockFormat other = decode_->spec().format;
  other.order = "spirals";
  const absl::Status status =
      KvTransfer(*prefill_, *decode_, absl::MakeConstSpan(source).subspan(0, 1),
                 absl::MakeConstSpan(source).subspan(0, 1), other, absl::Milliseconds(300));
  EXPECT_FALSE(status.ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, ExchangeTest,
    ::testing::Values(std::pair("device", "avx512bf16"), std::pair("device", "avx512"),
                      std::pair("device", "avx2"), std::pair("avx512bf16", "device"),
                      std::pair("avx2", "device"), std::pair("avx2", "avx512bf16"),
                      std::pair("device", "ref"), std::pair("amx_emulated", "avx512bf16"),
                      std::pair("amx", "amx_emulated")),
    [](const ::testing::TestParamInfo<ExchangeTest::ParamType>& param) {
      return std::string(param.param.first) + "_to_" + param.param.second;
    });

}  // namespace
}  // namespace tandem::engine
