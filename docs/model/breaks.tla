--------------------------------- MODULE breaks ---------------------------------
(* Breaks: what makes it impossible to know that what is served is right, and how it is noticed and ended.

   One person, a topic of one partition that may get a second one, one line, and comparisons of Redis with Kafka. What
   Kafka acknowledged is the truth, not what a line reads of it. docs/how-it-works.md says the same in plain English.

   A rule holds where `Rule("...")` stands; `Off` names the rules that are switched off.                              *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Retention,    \* after so many ticks of the clock, Kafka may remove a tombstone (delete.retention.ms)
  MaxTicks, MaxRecords, MaxFaults,  \* bounds
  Kinds,        \* the faults that happen
  Off

Rule(name) == name \notin Off
Partitions == {1, 2}
Highest(set) == CHOOSE n \in set : \A m \in set : m <= n

VARIABLES
  log,        \* the records: [put, partition, version, kept, age]; the offset of a record is its place
  topic,      \* [id, epoch, start, cut, partitions]; start: the first offset in each partition; cut: where logs part
  truth,      \* whether the person exists, by all that Kafka acknowledged
  made,       \* how many records were ever published: versions, and the order of time between partitions
  cluster,    \* which cluster the line reaches: "own" or "other"
  document,   \* [live, version] in Redis; version 0: nothing is known
  position,   \* the offset up to which each partition is applied; 0: none
  known,      \* what Redis knows of Kafka and of itself: [id, epoch, evictions, filled]; 0: nothing is known;
              \* filled: everything was applied once since Redis was empty
  remembered, \* the number of partitions when all was right, which Kafka keeps for the group
  breaks,     \* those that are stored: [kind, number]; one that is noticed again is another one
  complete,   \* ticks since the moment at which everything was last known to be applied
  sample,     \* [age, end]: ticks since a sample of the end offsets, and these
  evictions,  \* how often Redis has evicted something
  comparison, \* what a comparison has read
  saved,      \* an older copy of Redis
  again,      \* whether the core product has published everything again since its topic lost something
  spent
vars == <<log, topic, truth, made, cluster, document, position, known, remembered, breaks, complete, sample, evictions,
          comparison, saved, again, spent>>

None == [kind |-> "none"]
Unknown == 99
Nobody == [live |-> FALSE, version |-> 0]
Lost == {"recreated", "truncated", "records_missed", "partitions_raised"}  \* a person has to end these

Init == /\ log = <<[put |-> TRUE, partition |-> 1, version |-> 1, kept |-> TRUE, age |-> 0]>>
        /\ topic = [id |-> 1, epoch |-> 1, start |-> [p \in Partitions |-> 1], cut |-> 99, partitions |-> 1]
        /\ truth = TRUE
        /\ made = 1
        /\ cluster = "own"
        /\ document = [live |-> TRUE, version |-> 1]
        /\ position = [p \in Partitions |-> IF p = 1 THEN 1 ELSE 0]
        /\ known = [id |-> 1, epoch |-> 1, evictions |-> 0, filled |-> TRUE]
        /\ remembered = 1
        /\ breaks = {}
        /\ complete = 0
        /\ sample = None
        /\ evictions = 0
        /\ comparison = None
        /\ saved = None
        /\ again = FALSE
        /\ spent = [ticks |-> 0, faults |-> 0]

Offsets(p) == {i \in 1..Len(log) : log[i].partition = p}
End(p) == Highest({0} \cup Offsets(p))
Ends == [p \in Partitions |-> End(p)]
Kept == {i \in 1..Len(log) : log[i].kept}
Newest == Highest({0} \cup {log[i].version : i \in Kept})
(* What somebody finds who reads the topic from its beginning: the newest record that is left decides. *)
Content == IF Kept = {} THEN Nobody
           ELSE LET i == CHOOSE i \in Kept : log[i].version = Newest IN [live |-> log[i].put, version |-> Newest]
(* The partition of the person's message key. *)
Partition == topic.partitions

(* ---- Kafka -------------------------------------------------------------------------------------------------------- *)

Appended(put) == Append(log, [put |-> put, partition |-> Partition, version |-> made + 1, kept |-> TRUE, age |-> 0])
Publish(put) == /\ Len(log) < MaxRecords /\ put # truth
                /\ log' = Appended(put)
                /\ truth' = put
                /\ made' = made + 1
                /\ UNCHANGED <<topic, cluster, document, position, known, remembered, breaks, complete, sample, evictions,
                               comparison, saved, again, spent>>

(* Compaction keeps the newest record of the person in each partition. Some time after it has removed what is before a
   tombstone, it removes the tombstone: so who has read what was before has this time to read the tombstone.         *)
IsAlone(i) == \A j \in Kept : j < i => log[j].partition # log[i].partition
Compact(i) == /\ i \in Kept
              /\ \/ \E j \in Kept : j > i /\ log[j].partition = log[i].partition
                 \/ ~log[i].put /\ log[i].age >= Retention
              /\ log' = [log EXCEPT ![i].kept = FALSE]
              /\ UNCHANGED <<topic, truth, made, cluster, document, position, known, remembered, breaks, complete, sample,
                             evictions, comparison, saved, again, spent>>

Older(age) == IF age \in 0..Retention - 1 THEN age + 1 ELSE age
Tick == /\ spent.ticks < MaxTicks
        /\ spent' = [spent EXCEPT !.ticks = @ + 1]
        /\ log' = [i \in 1..Len(log) |-> IF i \in Kept /\ ~log[i].put /\ IsAlone(i) THEN [log[i] EXCEPT !.age = Older(@)] ELSE log[i]]
        /\ complete' = Older(complete)
        /\ sample' = IF sample = None THEN None ELSE [sample EXCEPT !.age = Older(@)]
        /\ saved' = IF saved = None THEN None ELSE [saved EXCEPT !.complete = Older(@)]
        /\ UNCHANGED <<topic, truth, made, cluster, document, position, known, remembered, breaks, evictions, comparison,
                       again>>

(* ---- Faults ------------------------------------------------------------------------------------------------------- *)

Fault(kind) == /\ kind \in Kinds /\ spent.faults < MaxFaults
               /\ spent' = [spent EXCEPT !.faults = @ + 1]
               /\ UNCHANGED <<made, comparison, remembered>>

(* The topic is deleted and created again: what was acknowledged is what the new one holds, which is nothing. *)
Recreate == /\ Fault("recreated")
            /\ log' = <<>> /\ truth' = FALSE /\ again' = FALSE
            /\ topic' = [topic EXCEPT !.id = @ + 1, !.start = [p \in Partitions |-> 1], !.cut = 99]
            /\ UNCHANGED <<cluster, document, position, known, breaks, complete, sample, evictions, saved>>

(* An unclean election: the last record is lost. *)
Truncate == /\ Fault("truncated") /\ Len(log) > 1 /\ Kept = 1..Len(log)
            /\ log' = SubSeq(log, 1, Len(log) - 1) /\ truth' = log[Len(log) - 1].put /\ again' = FALSE
            /\ topic' = [topic EXCEPT !.epoch = @ + 1, !.cut = IF @ < Len(log) - 1 THEN @ ELSE Len(log) - 1]
            /\ UNCHANGED <<cluster, document, position, known, breaks, complete, sample, evictions, saved>>

(* Retention, or somebody, deletes all records of a partition. *)
Delete(p) == /\ Fault("records_missed") /\ End(p) >= topic.start[p]
             /\ log' = [i \in 1..Len(log) |-> IF log[i].partition = p THEN [log[i] EXCEPT !.kept = FALSE] ELSE log[i]]
             /\ topic' = [topic EXCEPT !.start[p] = End(p) + 1] /\ again' = FALSE
             /\ UNCHANGED <<truth, cluster, document, position, known, breaks, complete, sample, evictions, saved>>

(* Somebody gives the topic a second partition, which is no fault. From now on, the person's records come there. *)
Raise == /\ "partitions_raised" \in Kinds /\ topic.partitions = 1
         /\ topic' = [topic EXCEPT !.partitions = 2] /\ again' = FALSE
         /\ UNCHANGED <<log, truth, made, cluster, document, position, known, remembered, breaks, complete, sample, evictions,
                        comparison, saved, spent>>

Mislead == /\ Fault("other_cluster") /\ cluster = "own"
           /\ cluster' = "other"
           /\ UNCHANGED <<log, topic, truth, document, position, known, breaks, complete, sample, evictions, saved, again>>
ComeBack == /\ cluster = "other"
            /\ cluster' = "own"
            /\ UNCHANGED <<log, topic, truth, made, document, position, known, remembered, breaks, complete, sample,
                           evictions, comparison, saved, again, spent>>

Evict == /\ Fault("evicted") /\ document.live
         /\ document' = Nobody /\ evictions' = evictions + 1
         /\ UNCHANGED <<log, topic, truth, cluster, position, known, breaks, complete, sample, saved, again>>

(* Redis is emptied. What it knew is read again, from the beginning: nothing is missed if that does not take too long. *)
Empty == /\ Fault("emptied")
         /\ document' = Nobody /\ position' = [p \in Partitions |-> 0]
         /\ known' = [id |-> 0, epoch |-> 0, evictions |-> evictions, filled |-> FALSE] /\ breaks' = {} /\ sample' = None
         /\ complete' = IF Rule("begun") THEN 0 ELSE Unknown
         /\ UNCHANGED <<log, topic, truth, cluster, evictions, saved, again>>

(* Redis comes back from an older copy, with what it knew then. Time has gone on. *)
Save == /\ "went_back" \in Kinds /\ saved = None
        /\ saved' = [kind |-> "copy", document |-> document, position |-> position, known |-> known, breaks |-> breaks,
                     complete |-> complete]
        /\ UNCHANGED <<log, topic, truth, made, cluster, document, position, known, remembered, breaks, complete, sample,
                       evictions, comparison, again, spent>>
GoBack == /\ saved # None /\ Fault("went_back")
          /\ document' = saved.document /\ position' = saved.position /\ known' = saved.known /\ breaks' = saved.breaks
          /\ complete' = saved.complete /\ sample' = None /\ saved' = None
          /\ UNCHANGED <<log, topic, truth, cluster, evictions, again>>

(* ---- The line ----------------------------------------------------------------------------------------------------- *)

(* The line has positions of another history, or of partitions that have lost what comes next. *)
Recreated == known.id # 0 /\ known.id # topic.id
Truncated == known.epoch # 0 /\ known.epoch # topic.epoch
(* What is not filled yet holds nothing of a partition without a position. Once it is filled, all partitions that had
   records have a position: one without is new, or lost its records before the first of them was read.             *)
Missed(p) == /\ position[p] > 0 \/ (Rule("every-partition") /\ known.filled)
             /\ position[p] + 1 < topic.start[p]
Raised == topic.partitions # remembered

KindsOf(set) == {b.kind : b \in set}
Noted(kinds) == {b \in breaks : b.kind \notin kinds}
                \cup {[kind |-> kind, number |-> made + spent.ticks + spent.faults] : kind \in kinds}

Unnoticed ==
     (IF Rule("recreated") /\ Recreated THEN {"recreated"} ELSE {})
  \cup (IF Rule("truncated") /\ Truncated /\ known.id = topic.id THEN {"truncated"} ELSE {})
  \cup (IF Rule("records_missed") /\ ~Recreated /\ \E p \in Partitions : Missed(p) THEN {"records_missed"} ELSE {})
  \cup (IF Rule("partitions_raised") /\ Raised /\ "partitions_raised" \notin KindsOf(breaks) THEN {"partitions_raised"} ELSE {})

(* Who begins has missed nothing. *)
First == /\ cluster = "own" /\ known.id = 0
         /\ position' = [p \in Partitions |-> topic.start[p] - 1]
         /\ known' = [known EXCEPT !.id = topic.id, !.epoch = topic.epoch]
         /\ UNCHANGED <<log, topic, truth, made, cluster, document, remembered, breaks, complete, sample, evictions,
                        comparison, saved, again, spent>>

Lower(a, b) == IF a < b THEN a ELSE b
Note == /\ cluster = "own" /\ Unnoticed # {}
        /\ breaks' = Noted(Unnoticed)
        /\ position' = [p \in Partitions |->
                          IF "recreated" \in Unnoticed THEN 0
                          ELSE IF "truncated" \in Unnoticed THEN Lower(position[p], topic.cut)
                          ELSE IF Missed(p) THEN topic.start[p] - 1 ELSE position[p]]
        /\ known' = [known EXCEPT !.id = topic.id, !.epoch = topic.epoch]
        /\ UNCHANGED <<log, topic, truth, made, cluster, document, remembered, complete, sample, evictions, comparison,
                       saved, again, spent>>

Applied(record) == IF record.version > document.version
                   THEN [live |-> record.put, version |-> record.version] ELSE document
Next_(p) == {i \in Kept : log[i].partition = p /\ i > position[p]}
Read(p) == /\ cluster = "own" /\ Unnoticed = {} /\ known.id # 0 /\ position[p] < End(p)
           /\ IF Next_(p) = {}
              THEN position' = [position EXCEPT ![p] = End(p)] /\ UNCHANGED document
              ELSE LET i == CHOOSE i \in Next_(p) : \A j \in Next_(p) : i <= j
                   IN position' = [position EXCEPT ![p] = i] /\ document' = Applied(log[i])
           /\ UNCHANGED <<log, topic, truth, made, cluster, known, remembered, breaks, complete, sample, evictions, comparison,
                          saved, again, spent>>

(* The other cluster holds the same person, in a version of its own. *)
ReadOther == /\ cluster = "other" /\ ~Rule("other_cluster") /\ document.version < 90
             /\ document' = [live |-> TRUE, version |-> 90]
             /\ UNCHANGED <<log, topic, truth, made, cluster, position, known, remembered, breaks, complete, sample,
                            evictions, comparison, saved, again, spent>>

(* ---- What is said about what is served ---------------------------------------------------------------------------- *)

Reaches(ends) == \A p \in Partitions : position[p] >= ends[p]
Wrong == (document.live /\ ~truth) \/ (~document.live /\ truth /\ Content.live)

Sample == /\ cluster = "own" /\ sample = None /\ Unnoticed = {}
          /\ sample' = [kind |-> "ends", age |-> 0, ends |-> Ends]
          /\ UNCHANGED <<log, topic, truth, made, cluster, document, position, known, remembered, breaks, complete,
                         evictions, comparison, saved, again, spent>>

(* All that Kafka had acknowledged is applied, and nothing speaks against it: it is said that all is well. The gap since
   it was last so is measured now, not when the sample was taken: a tombstone may have gone in between.              *)
Gap == IF Rule("reached") THEN complete ELSE complete - sample.age
Seen == (IF Rule("deletes_missed") /\ complete # Unknown /\ Gap >= Retention THEN {"deletes_missed"} ELSE {})
        \cup (IF Rule("evicted") /\ known.evictions # evictions THEN {"evicted"} ELSE {})
IsReached == cluster = "own" /\ sample # None /\ Unnoticed = {} /\ Reaches(sample.ends)
Reach == /\ IsReached
         /\ breaks' = Noted(Seen)
         /\ complete' = IF complete \in 0..sample.age THEN complete ELSE sample.age
         /\ known' = [known EXCEPT !.evictions = evictions, !.filled = TRUE]
         /\ sample' = None
         /\ UNCHANGED <<log, topic, truth, made, cluster, document, position, remembered, evictions, comparison, saved,
                        again, spent>>

(* ---- The ways out ------------------------------------------------------------------------------------------------- *)

(* A person has everything published again that a topic has lost. Of partitions that were added: in the former ones, a
   tombstone removes what is there.                                                                                   *)
PublishAgain == /\ ~again /\ KindsOf(breaks) \cap Lost # {} /\ cluster = "own"
                /\ log' = [i \in 1..Len(log) + 1 |->
                             IF i > Len(log) THEN Appended(truth)[i]
                             ELSE IF log[i].partition # Partition THEN [log[i] EXCEPT !.kept = FALSE] ELSE log[i]]
                /\ made' = made + 1
                /\ again' = TRUE
                /\ UNCHANGED <<topic, truth, cluster, document, position, known, remembered, breaks, complete, sample,
                               evictions, comparison, saved, spent>>

(* A comparison reads a whole topic, and which document is stored. *)
Compare == /\ comparison = None /\ breaks # {} /\ cluster = "own" /\ Unnoticed = {} /\ Reaches(Ends)
           /\ KindsOf(breaks) \cap (Lost \ {"partitions_raised"}) # {} => again
           /\ comparison' = [kind |-> "read", content |-> Content, version |-> document.version, breaks |-> breaks]
           /\ UNCHANGED <<log, topic, truth, made, cluster, document, position, known, remembered, breaks, complete, sample,
                          evictions, saved, again, spent>>

(* Later, it puts right what differs, if that is still what it has compared, and ends the breaks that it began with. *)
InOldPartition == Rule("old-partition") /\ \E i \in Kept : log[i].put /\ log[i].partition # Partition
Ended == {b \in IF Rule("began") THEN breaks \cap comparison.breaks ELSE breaks :
            b.kind = "partitions_raised" => ~InOldPartition}
PutRight ==
  /\ comparison # None /\ cluster = "own"
  /\ LET differs == document.live # comparison.content.live
         same == Rule("same-document") => document.version = comparison.version
     IN document' = IF ~differs \/ ~same THEN document
                    ELSE IF document.live THEN [document EXCEPT !.live = FALSE]
                    ELSE IF comparison.content.version > document.version THEN comparison.content ELSE document
  /\ breaks' = breaks \ Ended
  /\ remembered' = IF "partitions_raised" \in KindsOf(Ended) THEN topic.partitions ELSE remembered
  /\ comparison' = None
  /\ UNCHANGED <<log, topic, truth, made, cluster, position, known, complete, sample, evictions, saved, again, spent>>

Line == First \/ Note \/ Sample \/ Reach \/ ReadOther \/ \E p \in Partitions : Read(p)
Way == PublishAgain \/ Compare \/ PutRight \/ ComeBack
Faults == \/ Recreate \/ Truncate \/ Raise \/ Mislead \/ Evict \/ Empty \/ Save \/ GoBack
          \/ \E p \in Partitions : Delete(p)
Next == \/ Line \/ Way \/ Faults \/ Tick
        \/ \E put \in BOOLEAN : Publish(put)
        \/ \E i \in 1..Len(log) : Compact(i)
Spec == Init /\ [][Next]_vars

(* Nobody says that all is well while a person who was deleted is served, or one whom Kafka holds is not. *)
Honest == IsReached /\ Reaches(Ends) /\ breaks = {} /\ Seen = {} => ~Wrong
=================================================================================
