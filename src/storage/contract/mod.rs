//! The contract suite: every sentence of `ports` as a named case, for any backend.
//!
//! What comes in: a [`Factory`], which opens, crashes and restarts one backend. What goes out: a
//! panic that names what was broken. Called by tests only, of this crate and of others; a backend
//! passes all cases unchanged or is no backend. Never: knowledge of how a backend works.
//!
//! `contract::suite!(factory)` makes one test of each case.

mod application_cases;
mod kit;
mod log_cases;
mod queue_cases;
mod random;
mod recovery_cases;
mod table_cases;

use super::{BoxFuture, Stores};

pub use application_cases::{
    logs_of_applications_end_with_their_owner, logs_of_applications_go_on_after_a_restart,
    logs_of_applications_take_and_give_like_queues,
};
pub use kit::{Harness, Inbox, Seen, batch_of, client, text};
pub use log_cases::{
    a_cancelled_next_loses_nothing, a_consumer_goes_on_behind_its_commit,
    a_second_consumer_of_a_partition_panics, appends_settle_and_are_consumed_in_order,
    decisions_behind_the_commit_are_told, direct_copies_come_back_whole,
    durable_records_survive_a_crash, lag_counts_what_waits, positions_rise_over_crashes,
    relaxed_appends_keep_the_order_too, the_consumer_is_told_how_far_the_log_goes,
    what_was_not_committed_comes_again_under_the_same_identity,
};
pub use queue_cases::{
    a_new_incarnation_empties_the_queue, a_source_is_taken_once, acks_forget_in_any_order,
    an_exact_cursor_spares_the_dup_flag, calls_for_another_incarnation_change_nothing,
    entries_get_rising_sequences_and_read_back, expiry_is_the_publishers_or_the_default,
    over_the_limit_the_oldest_go, pages_obey_their_bounds, received_entries_are_never_trimmed,
    received_marks_show_once_settled, removal_ends_the_queue,
    reserved_runs_show_until_acknowledged, the_bucket_gives_what_it_has,
    what_moves_leaves_its_queue_alone,
};
pub use random::queues_survive_any_mix_of_crashes;
pub use recovery_cases::{
    a_crash_is_not_forgotten_by_an_orderly_restart,
    a_queue_lost_in_a_crash_is_filled_again_by_the_replay, an_ack_survives_an_orderly_restart,
    commit_and_state_are_a_pair_after_a_crash, marks_and_runs_survive_a_crash,
    opens_and_removals_survive_in_order,
};
pub use table_cases::{
    a_put_is_applied_before_it_settles, load_gives_the_newest_row_of_each_key,
    relaxed_and_durable_rows_of_a_key_keep_their_order, retained_rows_wait_for_the_consumer,
    row_positions_rise_over_restarts, rows_of_one_put_stand_together,
    subscriptions_are_found_as_the_commit_left_them,
};

/// One backend under test. Dropping it ends it.
pub trait Backend: Send {
    fn stores(&self) -> Stores;

    /// Ends it as a loss of power would, and opens what is left.
    fn crash(&mut self) -> BoxFuture<'_, ()>;

    /// Ends it in order and opens it again.
    fn restart(&mut self) -> BoxFuture<'_, ()>;
}

/// How a backend is to be made for a case.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// DEV-5.
    pub queue_limit: u64,
    /// DEV-6, milliseconds.
    pub queue_ttl_ms: u64,
    /// Tokens the bucket holds, refilled over an hour.
    pub tokens: u64,
    /// For what a backend decides by dice.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { queue_limit: 10_000, queue_ttl_ms: 604_800_000, tokens: 100, seed: 1 }
    }
}

pub trait Factory: Send + Sync {
    /// A fresh, empty backend.
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>>;

    /// `false`: what it needs is not there, which has been said; its cases do nothing then.
    fn is_ready(&self) -> bool {
        true
    }

    /// How many seeds the random case runs; fewer where opening is slow.
    fn seeds(&self) -> u64 {
        8
    }
}

/// Makes one Tokio test of every case; the argument is an expression that makes a `Factory`.
#[macro_export]
macro_rules! storage_contract {
    ($factory:expr) => {
        $crate::storage::contract::suite! { $factory;
            a_cancelled_next_loses_nothing
            a_consumer_goes_on_behind_its_commit
            a_crash_is_not_forgotten_by_an_orderly_restart
            a_new_incarnation_empties_the_queue
            a_put_is_applied_before_it_settles
            a_queue_lost_in_a_crash_is_filled_again_by_the_replay
            a_second_consumer_of_a_partition_panics
            a_source_is_taken_once
            acks_forget_in_any_order
            an_ack_survives_an_orderly_restart
            an_exact_cursor_spares_the_dup_flag
            appends_settle_and_are_consumed_in_order
            calls_for_another_incarnation_change_nothing
            commit_and_state_are_a_pair_after_a_crash
            decisions_behind_the_commit_are_told
            direct_copies_come_back_whole
            durable_records_survive_a_crash
            entries_get_rising_sequences_and_read_back
            expiry_is_the_publishers_or_the_default
            lag_counts_what_waits
            load_gives_the_newest_row_of_each_key
            logs_of_applications_end_with_their_owner
            logs_of_applications_go_on_after_a_restart
            logs_of_applications_take_and_give_like_queues
            marks_and_runs_survive_a_crash
            opens_and_removals_survive_in_order
            over_the_limit_the_oldest_go
            pages_obey_their_bounds
            positions_rise_over_crashes
            queues_survive_any_mix_of_crashes
            received_entries_are_never_trimmed
            received_marks_show_once_settled
            relaxed_and_durable_rows_of_a_key_keep_their_order
            relaxed_appends_keep_the_order_too
            removal_ends_the_queue
            reserved_runs_show_until_acknowledged
            retained_rows_wait_for_the_consumer
            row_positions_rise_over_restarts
            rows_of_one_put_stand_together
            subscriptions_are_found_as_the_commit_left_them
            the_bucket_gives_what_it_has
            the_consumer_is_told_how_far_the_log_goes
            what_moves_leaves_its_queue_alone
            what_was_not_committed_comes_again_under_the_same_identity
        }
    };
    ($factory:expr; $($case:ident)*) => {$(
        #[tokio::test]
        async fn $case() {
            let factory = $factory;
            if $crate::storage::contract::Factory::is_ready(&factory) {
                $crate::storage::contract::$case(&factory).await;
            }
        }
    )*};
}

pub use storage_contract as suite;
