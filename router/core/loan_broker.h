// Finds creditors for nodes that need memory: the paper's gManager (Infinite-LLM, arXiv
// 2401.02669). A debtor asks; the broker asks creditors in turn, the best first, and tells the
// debtor which one took the loan on. Loans are between nodes: the broker keeps none, and what it
// knows of debts comes with the nodes' load reports. Several routers may each find creditors for
// their own nodes' questions, because a creditor's answer is final.
//
// Rank, in this order:
//   - the node that the debtor prefers, because a plan names it (loan_planner.h);
//   - nodes that hold more of the wanted blocks: they need not be sent;
//   - what the loan will cost over the link, one predicted number (router/fleet/loan_price.h);
//   - the free share of the pool, in eighths;
//   - how busy the node is with sequences of its own (Node::queue_fraction): they compete with the
//     debtor's questions for its processors, and lose what it computes for the debtor;
//   - the free share exactly, then the node's id.
//
// Links are compared in classes, so that noise does not decide: the cheapest link, and all that
// cost less than a quarter more, are one class, and so on from the cheapest of the rest. Classes
// that begin at a measured price have no fixed borders, which two equal links could lie on both
// sides of. A quarter is well above the noise of an average over many questions, and well below
// what tells two kinds of links apart: shared memory and TCP differ by a factor of two and more.
//
// A loan that moves is asked for in the same way; its next creditor fetches the units from the
// present one, and answers when it has them. So is one of lost units: any node that holds their
// blocks, as prefix cache, stands in for the creditor that has lost them.
//
// When no creditor takes a loan on, nodes are asked whose own sequences lack memory, too: of two
// such sequences the one that came first goes on (common/node/lender.h). Not for a loan without an
// age: no sequence needs it.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: a question that was asked gets one answer, at the latest at its deadline.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/core/router_actions.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class LoanBroker {
 public:
  static constexpr size_t kQuestionsMax = 1024;  // at a time; others are answered with a refusal
  static constexpr size_t kCreditorsMax = 3;     // asked for one loan
  static constexpr size_t kRivalsMax = 2;        // asked after them
  // How long it is remembered that no node lent to a node's sequence.
  static constexpr absl::Duration kUnmetKept = absl::Seconds(5);
  // Of one loan: 16 units of 256 tokens, in the smallest blocks.
  static constexpr size_t kBlocksMax = 4096;
  // Beside cost::LoanBytesTime where the creditor fetches the blocks before it answers.
  static constexpr absl::Duration kTimeMax = absl::Milliseconds(1500);
  // The first creditor's part of it: it may take a second (Lender::kWaitMax). After that another
  // one is asked, and again after kNextTime.
  static constexpr absl::Duration kFirstTime = absl::Milliseconds(1100);
  static constexpr absl::Duration kNextTime = absl::Milliseconds(150);

  // All outlive the broker.
  LoanBroker(const Fleet& fleet, const PrefixIndex& index, RouterActions& actions)
      : fleet_(fleet), index_(index), actions_(actions) {}

  // `debtor` needs memory. Errors: kInvalidArgument for malformed hashes or units, and for more
  // than kBlocksMax blocks.
  absl::Status OnLoanWanted(const Node& debtor, const v1::LoanWanted& wanted, absl::Time now);
  // `creditor` answers. Answers to questions that have ended, or that went on to another creditor,
  // are ignored: the creditor's loan expires.
  void OnLoanOffered(const Node& creditor, const v1::LoanOffered& offered, absl::Time now);
  // The node left: its questions end, and questions to it go to the next creditor.
  void OnNodeLost(NodeKey key, absl::Time now);
  void OnTick(absl::Time now);

 private:
  using Key = std::pair<NodeKey, uint64_t>;  // debtor, loan
  struct Question {
    // Without the nodes to avoid. Bound: kBlocksMax hashes.
    v1::LoanWanted wanted;
    // Bound: kCreditorsMax and kRivalsMax.
    std::vector<NodeKey> left;  // to be asked, the best last
    NodeKey asked;
    absl::Status refusal;  // the last one
    absl::Time deadline;
    absl::Time patient_until;  // with whom is asked, at least
    absl::Time next_due;       // then the next creditor is asked
  };
  using Questions = std::map<Key, Question>;
  static constexpr double kLinkClass = 1.25;  // from a class's cheapest link to its dearest
  // The nodes that could take on a unit of the wanted ones now, or all of a loan that moves, the
  // best first: kCreditorsMax at most, and none that the debtor avoids. `hashes`: of the wanted
  // units' blocks.
  std::vector<const Node*> Rank(const Node& debtor, const v1::LoanWanted& wanted,
                                absl::Span<const kv::BlockHash> hashes) const;
  // Names a holder of lost units in place of the creditor that lost them, and leaves out the units
  // that it does not hold. False: none holds the first unit.
  bool NameHolder(const Node& debtor, absl::Span<const kv::BlockHash> hashes,
                  v1::LoanWanted& wanted) const;
  // A node that could take the loan on.
  struct Candidate {
    int64_t group = 0;  // less for a preferred node, and for one that holds more of the blocks
    double price_us = 0;
    const Node* node = nullptr;
    std::pair<int64_t, double> place() const { return {group, price_us}; }
  };
  // The best ones: kCreditorsMax at most.
  static std::vector<const Node*> Best(absl::Span<const Candidate> candidates);
  // Nodes that may hold back a sequence of theirs for the wanting one, because it came later: those
  // that borrow, and those whose last question found no creditor. kRivalsMax at most, and none that
  // the debtor avoids.
  std::vector<NodeKey> Rivals(const Node& debtor, const v1::LoanWanted& wanted,
                              absl::Time now) const;
  // Asks the next creditor, or ends the question with a refusal. Erases it in the second case.
  void AskNext(Questions::iterator it, absl::Time now);
  void Refuse(NodeKey debtor, uint64_t loan, const absl::Status& why);

  const Fleet& fleet_;
  const PrefixIndex& index_;
  RouterActions& actions_;
  // Bound: kQuestionsMax.
  Questions questions_;
  // When a node's question last ended without a creditor. Bound: the fleet's nodes.
  std::map<NodeKey, absl::Time> unmet_;
};

}  // namespace tandem::router
