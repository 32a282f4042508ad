--------------------------------- MODULE trace ---------------------------------
(* Whether what real programs did is a behaviour of the model of the control record.

   A trace is a sequence of lines (tests/model/traces.py). Each says what both shards held after a command that has
   changed a copy or a document. So each step of the model that changes one of these must lead to what the next line
   says. All other steps are taken between the lines, as far as they can explain a later one.                         *)
EXTENDS control, Sequences, lines

VARIABLES trace, line
all == <<vars, trace, line>>

Last == Traces[trace][line]
Following == Traces[trace][line + 1]

PartOf(shown) == [lineage |-> 1, epoch |-> shown.epoch, nonce |-> shown.nonce, live |-> shown.live,
                  written |-> shown.written, dropping |-> shown.dropping, last |-> shown.last, old |-> {}]
CopyOf(shown) == IF shown.incarnation = 0 THEN Missing
                 ELSE [part |-> PartOf(shown), incarnation |-> shown.incarnation, filling |-> shown.filling,
                       filled |-> shown.filled, swept |-> shown.swept, position |-> shown.position, needs |-> 0]

TraceInit ==
  /\ trace \in 1..Len(Traces)
  /\ line = 1
  /\ end = Last.end
  /\ copies = [s \in Shards |-> CopyOf(Last.copies[s])]
  /\ docs = [g \in Generations |-> [e \in Entities |->
               IF Last.docs[g][e] = 0 THEN NoDocument ELSE [version |-> Last.docs[g][e], by |-> 2]]]
  /\ session = [p \in Processes |-> NoSession]
  /\ op = [o \in Operators |-> NoCommand]
  /\ registered = Processes
  /\ decided = NotDecided
  /\ saved = [s \in Shards |-> NotSaved]
  /\ born = Highest(UNION {Known(copies[s].part) : s \in Shards})
  /\ made = 1000  \* the incarnations in lines are lower
  /\ spent = [commands |-> 0, deaths |-> 0, crashes |-> 0, emptied |-> 0, back |-> 0]
  /\ seen = [e \in Entities |-> 0]
  /\ counted = copies[Home].part

(* The copy is the one that the next line shows. Incarnations have other names there, but change when they do. *)
ShowsCopy(s) ==
  LET shown == Following.copies[s] IN
  IF copies'[s] = Missing THEN shown.incarnation = 0
  ELSE /\ CopyOf(shown) = [copies'[s] EXCEPT !.incarnation = shown.incarnation, !.needs = 0]
       /\ copies[s] # Missing =>
            (shown.incarnation = Last.copies[s].incarnation) = (copies'[s].incarnation = copies[s].incarnation)
Shows == /\ line < Len(Traces[trace])
         /\ \A s \in Shards : ShowsCopy(s)
         /\ \A g \in Generations, e \in Entities : docs'[g][e].version = Following.docs[g][e]
         /\ end >= Following.end

(* The steps between the lines. Each is taken as late as possible: before the next line of its program, or before the
   control record changes.                                                                                            *)
Coming == {PartOf(Traces[trace][i].copies[s]) :
             <<i, s>> \in {<<j, t>> \in ((line + 1)..Len(Traces[trace])) \X Shards :
                             Traces[trace][j].copies[t].incarnation # 0}}
Will == Following.will
IsOf(p) == Following.who = p
Changes(s) == LET before == Last.copies[s]
                  after == Following.copies[s]
              IN IF before.incarnation # after.incarnation \/ before.incarnation = 0
                 THEN before # after ELSE Stamp(PartOf(before)) # Stamp(PartOf(after))
IsLast(p) == IF IsOf(p) THEN TRUE ELSE p \in Following.acts /\ \E s \in Shards : Changes(s)
InAnyWay(p) == \E o \in Operators : op[o].pc = "fence" /\ p \in InTheWay(o)

Idle == CHOOSE o \in Operators : op[o].pc = "none"
Only(o) == \A other \in Operators : op[other].pc # "none" => <<op[other].kind, op[other].g>> # <<op'[o].kind, op'[o].g>>
Begins == /\ \E o \in Operators : op[o].pc = "none"
          /\ \/ Following.copies[Home].incarnation # 0 /\ Ask(Idle) /\ op'[Idle].part = PartOf(Following.copies[Home])
             \/ Resume(Idle) /\ Only(Idle)
             \/ Finish(Idle) /\ Only(Idle) /\ op'[Idle].part \in Coming

(* A write that changes nothing. *)
FirstOf(set) == CHOOSE i \in set : \A j \in set : i <= j
IsStale(p) == IF session[p].pc # "write" THEN FALSE
              ELSE LET e == EntityOf(FirstOf(session[p].todo))
                   IN At(e) \in session[p].open /\ \A g \in Target(p) : docs[g][e].version >= FirstOf(session[p].todo)
Stale(p) == /\ IsStale(p)
            /\ LET i == FirstOf(session[p].todo)
               IN /\ session' = [session EXCEPT ![p].todo = @ \ {i}, ![p].pc =
                       IF session[p].todo # {i} THEN @ ELSE IF p \in Operators THEN "fill" ELSE "others"]
            /\ UNCHANGED <<end, copies, docs, op, registered, decided, saved, born, made, spent>>

(* Steps that only make others possible are taken at once. *)
IsReady(o) ==
  CASE op[o].pc = "roll" -> Agreed /\ Stamp(Agreement) = Stamp(op[o].part)
    [] op[o].pc = "fence" -> op[o].kind = "forget" /\ InTheWay(o) = {}
    [] op[o].pc = "sweep" -> /\ Agreed /\ Stamp(Agreement) = Stamp(op[o].base)
                             /\ \/ op[o].may # Shards \ op[o].swept
                                \/ \A s \in Shards : op[o].g \in copies[s].swept
    [] OTHER -> FALSE
Ready == {o \in Operators : IsReady(o)}
AtOnce == IF Ready # {} THEN LET o == CHOOSE o \in Ready : TRUE IN Counts(o) \/ Fenced(o) \/ Read(o) \/ Forget(o)
          ELSE LET p == CHOOSE p \in Writers : IsOf(p) /\ IsStale(p) IN Stale(p)
IsAtOnce == IF Ready # {} THEN TRUE ELSE \E p \in Writers : IF IsOf(p) THEN IsStale(p) ELSE FALSE

Late ==
  \/ Produce /\ \/ end < Following.end
                \/ \E p \in Writers : IsOf(p) /\ (Will[p] > end \/ Following.most[p] > end)
                \/ \E g \in Generations, e \in Entities : Following.docs[g][e] > end
  \/ \E p \in Writers :
       \/ IsLast(p) /\ (Open(p) \/ GiveUp(p) \/ CoverOthers(p) \/ CoverHome(p))
       \/ IsOf(p) /\ \/ Poll(p) /\ session'[p].to \in {Will[p], Following.most[p], end}
                     \/ Reconnect(p) \/ Crash(p)
       \/ InAnyWay(p) /\ Crash(p)
  \/ Begins
  \/ WakeUp
  \/ Following.act = "empty" /\ \E s \in Shards : Decides(s)
  \/ \E o \in Operators : \/ End(o) \/ Fenced(o) \/ Replay(o) \/ Replayed(o)
                          \/ Stale(o) \/ GiveUp(o)
                          \/ \E s \in Shards : Sweep(o, s)
Hidden == IF IsAtOnce THEN AtOnce ELSE Late
Shown == \/ Keeper
         \/ \E p \in Writers : Following.who \in {p, "o"} /\ (Write(p) \/ CoverOthers(p) \/ CoverHome(p))
         \/ \E o \in Operators : \/ Change(o) \/ Roll(o) \/ Write(o)
                                 \/ \E s \in Shards : Sweep(o, s) \/ Mark(o, s) \/ FillReplayed(o, s)
         \/ Following.act = "empty" /\ \E shards \in Emptied : Empty(shards)

TraceNext == /\ line < Len(Traces[trace])
             /\ UNCHANGED <<trace, seen, counted>>
             /\ \/ Hidden /\ UNCHANGED <<copies, docs, line>>
                \/ Shown /\ Shows /\ line' = line + 1
TraceSpec == TraceInit /\ [][TraceNext]_all

(* Without what only bounds a model, or follows from the rest. *)
View == <<end, copies, docs, session, op, decided, born, made, trace, line>>

(* Prints how far a trace has come, and looks no further when all of it is explained. *)
Reached == /\ TLCGet(trace) < line => TLCSet(trace, line) /\ PrintT(<<"reached", trace, line>>)
           /\ TLCGet(trace) < Len(Traces[trace])
ASSUME \A t \in 1..Len(Traces) : TLCSet(t, 0)
================================================================================
