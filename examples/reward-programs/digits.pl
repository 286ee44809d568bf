#!/usr/bin/env perl
# A reward program in Perl: the share of the answer's characters that are in their places. docs/rewards.md has the protocol.
use strict;
use warnings;
use JSON::PP;

my $json = JSON::PP->new->utf8;
$| = 1;    # each line at once

sub score {
    my ($sample) = @_;
    my @truth = split //, $sample->{truth};
    my @given = split //, $sample->{completion};
    my $right = grep { $_ < @given && $given[$_] eq $truth[$_] } 0 .. $#truth;
    return @truth ? $right / @truth : undef;    # undef is null: not for this sample
}

while (my $line = <STDIN>) {
    my $message = $json->decode($line);
    if ($message->{type} eq 'hello') {
        print $json->encode({type => 'hello', protocol => 1, name => 'digits'}), "\n";
        next;
    }
    my @scores = map { {sample => $_->{sample}, score => score($_)} } @{$message->{samples}};
    print $json->encode({type => 'scores', batch => $message->{batch}, scores => \@scores}), "\n";
}
